"""Many sites in one process: each with its own file, limits, memory and name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fedkin.data.site import Agreement
from fedkin.engines.flower.bundles import requests_of, tie, tied, untie
from fedkin.engines.flower.engine import Flower, SiteRequest
from fedkin.engines.flower.exchange import KnownSite, WaitPolicy
from fedkin.engines.flower.processes import free_port
from fedkin.engines.flower.records import from_records, to_records
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError
from fedkin.runs.sites.machine import Machine, asked_once, make_machine, site_files
from fedkin.runs.sites.plan import Plan, read_serve_config
from fedkin.runs.sites.policy import SitePolicy
from fedkin.runs.training import Trainer
from fedkin.tensors import read_tensors
from tests.helpers import assert_states_close
from tests.runs.sites.world import (
    NAMES,
    Process,
    all_ended,
    embedded,
    fedkin,
    write_config,
    write_data,
)


def machine(folder: Path, said: list[str], files: Sequence[str] = NAMES) -> Machine:
    (folder / "data").mkdir(exist_ok=True)
    write_data(folder / "data", files)
    return make_machine(
        "m", folder / "data", folder / "home", "cpu", said.append, SitePolicy(), True, "s"
    )


class OneMessage:
    """A transport to one machine, in this process: all requests in one message."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def exchange(
        self, requests: Sequence[SiteRequest], everyone: bool = False
    ) -> dict[int, Message | str]:
        tensors, facts = self.machine.respond(*from_records(tie(requests)))
        answer = from_records(to_records(facts, reply=tensors))
        return dict(enumerate(untie(answer, len(requests))))


@pytest.mark.parametrize("method", ["scaffold", "perm"])  # perm: each its own model
def test_sites_of_a_machine_give_the_embedded_engines_numbers(tmp_path: Path, method: str):
    options = {"warm_up": 1} if method == "perm" else {}
    config_path = write_config(tmp_path, method, rounds=2, **options)
    config, agreement = read_serve_config(config_path)
    plan = Plan.new("run", 3, Agreement.model_validate(agreement), WaitPolicy())
    here = machine(tmp_path, [])
    hello = {"kind": "hello", "experiment": "e", "setup": plan.setup(config)}
    told = here.respond({}, hello)[1]["sites"]
    plan = plan.with_sites({facts["name"]: KnownSite(facts, 0) for facts in told})
    problem = config.make_problem(plan.data(config.data))
    trainer = Trainer(
        problem, config.make_method(), config.settings(), None,
        lambda name: Flower(OneMessage(here), plan.names, "e", name, 1, problem.device, print),
    )  # fmt: skip
    trainer.run()
    files = {name: here.sites[name].data for name in plan.names}
    assert list(files) == [f"m.{name}" for name in NAMES]
    same = embedded(config_path, files)
    ours, theirs = (each.contenders["method"].state for each in (trainer, same))
    assert_states_close(ours, theirs, 1e-5, 1e-5)
    homes = [path.name for path in (tmp_path / "home").iterdir()]
    assert sorted(homes) == sorted(files)


def test_what_goes_wrong_at_one_site_does_not_touch_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []
    here = machine(tmp_path, said)

    def answer(name: str) -> Any:
        def work(tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> Message:
            if name == NAMES[0]:
                raise ValueError("patient Jones")
            if name == NAMES[1]:
                raise FedkinError("no column 'age'")
            return {"dx": tensors["x"] + tensors["own"]}, {"good": True}

        return work

    for site in here.sites.values():
        monkeypatch.setattr(site, "answer", answer(site.name.removeprefix("m.")))
    asked = [
        SiteRequest(f"m.{name}", {"x": torch.ones(1, 2)}, {"own": torch.full((1, 2), i)},
                    {"kind": "work", "experiment": "e"})
        for i, name in enumerate((*NAMES, "nobody"))
    ]  # fmt: skip
    found = OneMessage(here).exchange(asked)
    assert found[0] == ({}, {"error": "ValueError", "name": "m.clinic-a"})
    assert found[1] == ({}, {"error": "no column 'age'", "name": "m.clinic-b"})
    reply, facts = found[2]
    assert isinstance(reply, dict)
    assert facts == {"good": True}
    assert torch.equal(reply["dx"], torch.full((1, 2), 3.0))
    assert found[3] == ({}, {"error": "there is no such site here", "name": "m.nobody"})
    assert any("patient Jones" in sentence for sentence in said)


def test_a_machine_ends_when_all_that_take_part_have_their_models(tmp_path: Path):
    here = machine(tmp_path, [])
    first, second, third = here.sites.values()
    here.respond({}, {"kind": "refused", "experiment": "e", "reason": "full", "site": first.name})
    assert first.refused == "full"
    assert here.refused is None
    second.finished = True
    assert not here.finished
    third.finished = True
    assert here.finished
    here.begin_anew()
    assert not here.finished
    here.respond({}, {"kind": "refused", "experiment": "e", "reason": "full"})
    assert here.refused == "full"


def test_a_site_may_have_limits_of_its_own(tmp_path: Path):
    machine(tmp_path, [])
    (tmp_path / "data" / "clinic-b.toml").write_text("least_batch = 30\n")
    sites = machine(tmp_path, []).sites
    assert [site.policy.least_batch for site in sites.values()] == [8, 30, 8]


def test_people_are_asked_once_for_all_sites_of_which_the_same_is_asked():
    asked: list[list[str]] = []
    agree = asked_once(lambda words: bool(asked.append(words)) or len(asked) < 2)
    assert agree(["s asks 'a'", "fedavg"])
    assert agree(["s asks 'b'", "fedavg"])
    assert not agree(["s asks 'c'", "perm"])
    assert len(asked) == 2


def test_files_that_cannot_be_sites_are_told(tmp_path: Path):
    with pytest.raises(FedkinError, match="there is no folder"):
        site_files(tmp_path / "no", "m")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FedkinError, match="has 0 files"):
        site_files(tmp_path, "m")
    (tmp_path / "a.csv").touch()
    assert list(site_files(tmp_path, "m")) == ["m.a"]
    (tmp_path / "a.npz").touch()
    with pytest.raises(FedkinError, match=r"would both be site 'm\.a'"):
        site_files(tmp_path, "m")


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (({}, {}), "is not one for each of its sites"),
        (({}, {"answers": [{}]}), "is not one for each of its sites"),
        (({}, {"answers": ["x", {}]}), "it is not an answer"),
        (({"packed": torch.zeros(3, dtype=torch.uint8)}, {"answers": [{}, {}]}), "cannot be read"),
    ],
)
def test_a_machines_nonsense_is_told_of_each_of_its_sites(answer: Message, sentence: str):
    assert sentence in str(untie(answer, 2)[0])


def test_a_name_beyond_the_bundle_is_nonsense():
    tensors, facts = tied([({"x": torch.zeros(1)}, {}), ({}, {})])
    assert untie((tensors, facts), 2)[1] == ({}, {})
    tensors, _ = tied([({}, {}), ({}, {}), ({"x": torch.zeros(1)}, {})])
    assert "cannot be read" in str(untie((tensors, facts), 2)[0])
    with pytest.raises(FedkinError, match="cannot be read"):
        requests_of({}, {"sites": ["a"], "requests": []})


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_sites_train_in_one_process_beside_one_of_its_own(tmp_path: Path):
    (tmp_path / "wards").mkdir()
    files = write_data(tmp_path / "wards", [f"w{i:02d}" for i in range(20)])
    files = {f"north.{name}": path for name, path in files.items()} | write_data(tmp_path, ["x"])
    config = write_config(tmp_path, "scaffold", rounds=3, lr=0.1)
    port = free_port()
    begin = ["serve", config, "--clients", 21, "--port", port, "--out", "run"]
    join = ["join", "--server", f"127.0.0.1:{port}", "--yes", "--name"]
    with all_ended() as processes:
        server = Process(fedkin, begin, tmp_path / "server.log")
        north = Process(fedkin, [*join, "north", "--sites", "wards"], tmp_path / "north.log")
        other = Process(fedkin, [*join, "x", "--data", "x.npz"], tmp_path / "x.log")
        processes += [server, north, other]
        assert server.ends() == 0, server.text()
        assert [north.ends(), other.ends()] == [0, 0], north.text()
    same, path = embedded(config, files), tmp_path / "run" / "models" / "global.safetensors"
    flat = same.problem.layout.join({k: v[None] for k, v in read_tensors(path).items()})[0]
    torch.testing.assert_close(flat, same.contenders["method"].state.x, rtol=1e-5, atol=1e-5)
    homes = {path.parent.name for path in (tmp_path / "fedkin-north").glob("*/model.safetensors")}
    assert homes == set(files) - {"x"}
