"""What a site answers: only what its own people and installed methods allow."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from fedkin.command.cli import app
from fedkin.core import rng
from fedkin.core.steps import step_name
from fedkin.errors import FedkinError
from fedkin.methods import PFedMe
from fedkin.methods.perm_printed import gradient_at
from fedkin.runs.sites.site import SiteWorker
from fedkin.tensors import read_facts, read_tensors

SETUP: dict[str, Any] = {
    "method": "pfedme",
    "options": {},
    "rounds": 5,
    "eval_every": 5,
    "baseline": False,
    "seed": 3,
    "model": {"name": "linear", "batch_size": 10},
    "data": {"target_column": "sick"},
    "sites": {
        "features": ["age", "sex"],
        "categories": {"sex": ["f", "m", "x"]},
        "classes": ["no", "yes"],
    },
}


@pytest.fixture
def site(tmp_path: Path) -> SiteWorker:
    table = pd.DataFrame(
        {
            "age": range(20, 60),
            "sex": ["f", "m"] * 20,
            "name": [f"patient {i}" for i in range(40)],
            "sick": ["no"] * 20 + ["yes"] * 20,
        }
    )
    table.to_csv(tmp_path / "my.csv", index=False)
    return SiteWorker("clinic-a", tmp_path / "my.csv", tmp_path / "home", say=lambda _: None)


def hello(site: SiteWorker, **changes: Any) -> dict[str, Any]:
    facts = {"kind": "hello", "experiment": "e", "setup": {**SETUP, **changes}}
    return site.answer({}, facts)[1]


def work(site: SiteWorker, step: str, tensors: dict[str, Any], **changes: Any) -> Any:
    facts = {
        "kind": "work", "experiment": "e", "contender": "method", "place": [1, 1, 0, 0],
        "client": 0,
        "step": step, "hyper": {}, "remember": True, "variant": {}, **changes,
    }  # fmt: skip
    _, number, call, _ = facts["place"]
    key = int(rng.key(SETUP["seed"], number, call, facts["client"])[0])
    return site.answer(tensors, {"key": key, **facts})


def test_a_site_tells_sizes_and_shapes_and_nothing_else(site: SiteWorker):
    card = hello(site)
    identity = card.pop("identity")
    assert card == {
        "name": "clinic-a", "fedkin": card["fedkin"], "train": 30, "test": 10,
        "validation": None, "shape": [4], "target": [], "num_classes": 2, "parameters": 10,
    }  # fmt: skip
    assert hello(site)["identity"] == identity


def test_a_step_of_a_method_runs_on_the_sites_data(site: SiteWorker):
    hello(site, method="perm")
    reply, facts = work(site, step_name(gradient_at), {"x": torch.zeros(1, 10)},
                        hyper={"batches": None})  # fmt: skip
    assert reply["g"].shape == (1, 10)
    assert facts == {"gradients": 1, "samples": 30, "good": True}


@pytest.mark.parametrize(
    "step",
    ["os:system", "builtins:eval", "fedkin.runs.sites.site:SiteWorker", "subprocess:run",
     "fedkin.methods.fedavg:FedAvg", "fedkin.methods.fedavg:nothing", "fedkin.methods.base:sgd2"],
)  # fmt: skip
def test_nothing_but_steps_of_installed_methods_is_run(site: SiteWorker, step: str):
    hello(site)
    with pytest.raises(FedkinError, match="step"):
        work(site, step, {"model": torch.zeros(1, 10)})


@pytest.mark.parametrize("name", ["../../up", "a/b", "", ".hidden", "x" * 200])
def test_names_from_the_server_cannot_leave_the_sites_folder(site: SiteWorker, name: str):
    hello(site)
    with pytest.raises(FedkinError, match="cannot be the name"):
        site.answer({}, {"kind": "hello", "experiment": name, "setup": SETUP})
    with pytest.raises(FedkinError, match="a request about"):
        work(site, "fedkin.methods.base:use", {"model": torch.zeros(1, 10)}, contender=name)


def test_the_server_cannot_choose_the_file(site: SiteWorker):
    card = hello(site, data={**SETUP["data"], "path": "/etc/passwd", "name": "parquet"})
    assert card["train"] == 30


def test_unknown_requests_and_experiments_are_refused(site: SiteWorker):
    with pytest.raises(FedkinError, match="never introduced"):
        work(site, "fedkin.methods.base:use", {})
    hello(site)
    with pytest.raises(FedkinError, match="request 'copy' is not known"):
        site.answer({}, {"kind": "copy", "experiment": "e"})


def test_a_restarted_site_goes_on_without_being_introduced(site: SiteWorker):
    hello(site)
    x, pfedme = torch.zeros(1, 10), PFedMe()
    hyper = {**pfedme.solver, **pfedme.work}
    step = "fedkin.methods.pfedme:envelope_steps"
    first, _ = work(site, step, {"x": x}, hyper=hyper)
    again = SiteWorker(site.name, site.data, site.home)
    same, _ = work(again, step, {"x": x}, hyper=hyper)
    assert same["dw"].equal(first["dw"])  # the answer of before, not work done twice
    work(again, "fedkin.methods.base:own", {"x": x}, hyper={"kept": "theta"}, kind="finish")
    kept = read_tensors(again.model_path)
    assert not all(value.eq(0).all() for value in kept.values())


def test_the_personal_model_is_written_at_the_site_and_not_sent(site: SiteWorker):
    hello(site)
    model = torch.arange(10.0)[None]
    reply, facts = work(site, "fedkin.methods.base:use", {"model": model}, kind="finish")
    assert (reply, facts) == ({}, {"written": True})
    assert site.finished
    kept = read_tensors(site.model_path)
    assert torch.cat([value.flatten() for value in kept.values()]).equal(model[0])
    about = read_facts(site.model_path)
    assert about["client"] == "clinic-a"
    assert json.loads(about["classes"]) == ["no", "yes"]
    assert len(json.loads(about["preparation"])["columns"]) == 2


def test_a_model_of_the_sites_own_size_is_written(site: SiteWorker):
    hello(site, model={"name": "mlp:8"})
    # 4 of 8 units with 4 inputs each, 2 outputs
    step, model = "fedkin.methods.base:use", torch.arange(4 * 5 + 2 * 5.0)[None]
    work(site, step, {"model": model}, kind="finish", variant={"rate": 0.5})
    shapes = {name: tuple(value.shape) for name, value in read_tensors(site.model_path).items()}
    assert shapes == {"1.weight": (4, 4), "1.bias": (4,), "3.weight": (2, 4), "3.bias": (2,)}
    assert read_facts(site.model_path)["rate"] == "0.5"


def test_what_is_wrong_with_the_data_is_said_in_a_sentence(site: SiteWorker):
    with pytest.raises(FedkinError, match="unknown column 'weight'"):
        hello(site, sites={**SETUP["sites"], "features": ["weight"]})
    with pytest.raises(FedkinError, match="unknown method 'pfedm'"):
        hello(site, method="pfedm")


def test_the_model_file_predicts_and_exports_without_the_site(site: SiteWorker, tmp_path: Path):
    """Linear logits of (age, f, m, x) by hand: only a patient's age counts, the scale undone."""
    hello(site)
    model = torch.zeros(1, 10)
    model[0, 4] = 2.0  # the weight of age for the class yes
    work(site, "fedkin.methods.base:use", {"model": model}, kind="finish")
    new = pd.DataFrame({"age": [20, 39, 58], "sex": ["f", None, "unheard-of"]})
    new.to_csv(tmp_path / "new.csv", index=False)
    (scaling,) = (c for c in site_columns(site.model_path) if c["kind"] == "number")
    z = (new["age"] - scaling["mean"]) / scaling["deviation"]
    expected = 1 / (1 + np.exp(-2 * z))
    (of_the_run,) = site.model_path.parent.glob("model-*.safetensors")
    for path in (site.model_path, of_the_run):
        found = CliRunner().invoke(app, ["predict", str(path), str(tmp_path / "new.csv")])
        assert found.exit_code == 0, found.output
        said = pd.read_csv(StringIO(found.stdout))
        np.testing.assert_allclose(said["probability of yes"], expected, atol=1e-5)
        assert said["prediction"].tolist() == np.where(expected > 0.5, "yes", "no").tolist()
    words = ["export", str(of_the_run), "--to", str(tmp_path / "model.pt2")]
    assert CliRunner().invoke(app, words).exit_code == 0
    program = torch.export.load(tmp_path / "model.pt2").module()
    x = torch.zeros(3, 4)
    x[:, 0] = torch.tensor(z.to_numpy())
    np.testing.assert_allclose(program(x).softmax(1)[:, 1].detach(), expected, atol=1e-5)


def site_columns(path: Path) -> list[dict[str, Any]]:
    """How the model file says that columns become inputs."""
    found: list[dict[str, Any]] = json.loads(read_facts(path)["preparation"])["columns"]
    return found


def test_rounds_are_told_in_lines_now_and_then(site: SiteWorker):
    said: list[str] = []
    hello(site)
    site.say, site.lines = said.append, True
    pfedme = PFedMe()
    for number in (1, 2):
        work(site, "fedkin.methods.pfedme:envelope_steps", {"x": torch.zeros(1, 10)},
             hyper={**pfedme.solver, **pfedme.work}, place=[1, number, 0, 0])  # fmt: skip
    assert said == ["'e': round 1 of 5"]
