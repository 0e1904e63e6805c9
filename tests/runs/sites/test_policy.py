"""A server that wants to read a site's rows ends at the site's own limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedkin.core import rng
from fedkin.core.guard import Guard
from fedkin.core.steps import step_name
from fedkin.errors import FedkinError
from fedkin.methods.perm_printed import gradient_at
from fedkin.methods.registry import all_methods
from fedkin.runs.sites import checking
from fedkin.runs.sites.policy import PolicyError, SitePolicy
from fedkin.runs.sites.private import AnnouncedPrivacy
from fedkin.runs.sites.site import SiteWorker
from fedkin.runs.sites.terms import StepsOf
from tests.runs.sites.world import write_config

GRADIENT, USE = step_name(gradient_at), "fedkin.methods.base:use"
JUDGE = "fedkin.runs.evaluation:judge"
SETUP: dict[str, Any] = {
    "method": "perm", "options": {}, "rounds": 300, "eval_every": 10, "baseline": False, "seed": 1,
    "model": {"name": "logistic", "batch_size": 1},
    "data": {"target_column": "sick", "standardise": False},
    "sites": {"features": ["age", "identity_number"], "classes": ["no", "yes"]},
}  # fmt: skip
FAIR: dict[str, Any] = {**SETUP, "model": {"name": "logistic", "batch_size": 8}}


def write_table(folder: Path) -> Path:
    table = np.random.default_rng(0)
    rows = {"age": table.integers(20, 90, 60), "identity_number": table.integers(1e6, 9e6, 60)}
    sick = table.choice(["no", "yes"], 60)
    pd.DataFrame({**rows, "sick": sick}).to_csv(folder / "my.csv", index=False)
    return folder / "my.csv"


def joined(folder: Path, policy: SitePolicy | None = None, **more: Any) -> SiteWorker:
    more = {"data": write_table(folder), **more}
    return SiteWorker("a", home=folder / "home", say=lambda _: None, policy=policy, **more)


def hello(site: SiteWorker, setup: dict[str, Any], experiment: str = "e") -> dict[str, Any]:
    return site.answer({}, {"kind": "hello", "experiment": experiment, "setup": setup})[1]


def ask(site: SiteWorker, number: int, step: str = GRADIENT, **changes: Any) -> Any:
    facts = {
        "kind": "work", "experiment": "e", "contender": "method", "place": [1, number, 0, 0],
        "client": 0, "step": step, "hyper": {"batches": 1}, "remember": True, "variant": {},
        "key": int(rng.key(1, number, 0, 0)[0]), **changes,
    }  # fmt: skip
    return site.answer({"x": torch.zeros(1, 6)} if step == GRADIENT else {}, facts)


def rows_read(site: SiteWorker, requests: int) -> set[tuple[float, ...]]:
    """The attack: the gradient of a logistic model on one row is the row times the bias's."""
    found = set()
    for number in range(1, requests + 1):
        reply, _ = ask(site, number)
        weight, bias = reply["g"][0, :4].view(2, 2), reply["g"][0, 4:]
        found.add(tuple((weight[0] / bias[0]).double().round().tolist()))
    return found


def test_without_limits_the_attack_reads_row_by_row(tmp_path: Path):
    site = joined(tmp_path, SitePolicy(least_batch=1, least_rows=1))
    hello(site, SETUP)
    table = pd.read_csv(tmp_path / "my.csv")[["age", "identity_number"]].astype(np.float32)
    truth = {tuple(map(float, row)) for row in table.itertuples(index=False)}
    assert len(rows_read(site, 30) & truth) > 10


@pytest.mark.parametrize(
    ("limits", "setup", "words"),
    [
        ({}, SETUP, "minibatches have 1 samples, and this site's least_batch is 8"),
        ({"columns": ["age"]}, FAIR, "uses the column 'identity_number', and this site allows age"),
        ({"target": "age"}, FAIR, "it predicts 'sick', and this site allows 'age'"),
        ({"methods": ["fedavg"]}, FAIR, "method 'perm', and this site allows fedavg"),
        ({"most_rounds": 100}, FAIR, "300 rounds, and this site allows 100"),
        ({}, {**FAIR, "data": {"train_per_client": 3}}, "it trains on 3 rows"),
        ({}, {**FAIR, "method": "x.py:Mine"}, "code in a file"),
        ({}, {**FAIR, "rounds": "many"}, "rounds should be a whole number"),
        ({}, {**FAIR, "more": 1}, "unknown key 'more'"),
        ({}, [], "announces nothing"),
    ],
)
def test_a_run_outside_the_limits_is_refused_before_the_file_is_opened(
    tmp_path: Path, limits: dict[str, Any], setup: Any, words: str
):
    site = joined(tmp_path, SitePolicy(**limits), data=tmp_path / "there-is-none.csv")
    with pytest.raises(FedkinError, match=words):
        hello(site, setup)
    assert site.refused


def test_parts_and_models_of_the_wrong_size_are_refused(tmp_path: Path):
    site = joined(tmp_path)
    with pytest.raises(PolicyError, match="test part would have 3 of this site's rows"):
        hello(site, {**FAIR, "data": {**FAIR["data"], "test_fraction": 0.05}})
    huge = {"name": "mlp:1000000,1000000", "batch_size": 8}
    with pytest.raises(PolicyError, match="has 1000006000002 parameters"):
        hello(site, {**FAIR, "model": huge}, "another")


def test_with_fair_batches_no_row_comes_out(tmp_path: Path):
    site = joined(tmp_path)
    hello(site, FAIR)
    table = pd.read_csv(tmp_path / "my.csv")[["age", "identity_number"]].astype(np.float32)
    truth = {tuple(map(float, row)) for row in table.itertuples(index=False)}
    assert not rows_read(site, 10) & truth


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"step": "fedkin.methods.fedavg:local_sgd2"}, "which perm does not ask for here"),
        ({"step": "fedkin.methods.ditto:global_and_own_steps"}, "does not ask for here"),
        ({"step": USE}, "base:use', which perm does not ask for here"),
        ({"step": JUDGE, "hyper": {"make": GRADIENT, "part": "test"}, "remember": False},
         "gradient_at', which perm does not ask for here"),
        ({"remember": False}, "gradient_at', which perm does not ask for here"),
        ({"key": 7}, "a random key that does not follow from the seed"),
        ({"place": [1, 301, 0, 0]}, "round 301 of a run of 300"),
        ({"place": [1, -1, 0, 0]}, "not made of whole numbers"),
        ({"place": ["a"]}, "cannot be understood"),
        ({"client": 3, "key": int(rng.key(1, 2, 0, 3)[0])}, "after it was client 0"),
        ({"hyper": {"batches": 10**9}}, "batches = 1000000000"),
        ({"hyper": {"batches": 1, "rows": 3}}, "the argument 'rows'"),
        ({"hyper": {"batches": [1]}}, r"batches = \[1\]"),
        ({"contender": "local"}, "a request about 'local'"),
        ({"variant": {"rate": 1e9}}, "times its size"),
        ({"step": JUDGE, "remember": False, "hyper": {"make": USE, "part": "rows"}}, "part = rows"),
    ],
)  # fmt: skip
def test_a_request_outside_the_announced_run_ends_it_here(
    tmp_path: Path, request_: dict[str, Any], words: str
):
    site = joined(tmp_path)
    hello(site, FAIR)
    ask(site, 1)
    with pytest.raises(PolicyError, match=words):
        ask(site, 2, **request_)
    assert "outside what was agreed to" in str(site.refused)
    for again in (site, SiteWorker("a", site.data, site.home, say=lambda _: None)):
        with pytest.raises(PolicyError, match="this run was ended here"):
            ask(again, 3)
        with pytest.raises(PolicyError, match="this run was ended here"):
            hello(again, FAIR)


def test_a_site_holds_the_server_to_the_privacy_announced(tmp_path: Path):
    site = joined(tmp_path)
    hello(site, {**FAIR, "method": "perm", "privacy": {"clip": 0.1, "noise": 2.0}})
    guard = Guard((("", 0.1),), noise=2.0, alone=True, secret=True).facts()
    reply, _ = ask(site, 1, guard=guard)
    assert float(reply["g"].abs().max()) < 2.0
    for wrong, words in (
        ({}, "not clipped"),
        ({"guard": {**guard, "limits": [["", 5.0]]}}, "another length than was announced"),
    ):
        with pytest.raises(FedkinError, match=words):
            ask(joined_again(tmp_path, words), 1, **wrong)


def joined_again(folder: Path, name: str) -> SiteWorker:
    place = folder / name.replace(" ", "-")
    place.mkdir()
    site = joined(place)
    hello(site, {**FAIR, "privacy": {"clip": 0.1, "noise": 2.0}})
    return site


def test_sites_that_add_the_noise_check_how_much():
    announced = AnnouncedPrivacy(clip=0.1, noise=2.0)
    facts = Guard((("", 0.1),), noise=1.0, secret=True).facts()
    announced.check({"guard": facts}, 4)
    for wrong in ({"noise": 0.9}, {"noise": 0.0}, {"secret": False}):
        with pytest.raises(PolicyError, match="noise"):
            announced.check({"guard": {**facts, **wrong}}, 4)
    assert announced.words(True) == "clipped to length 0.1; this site adds noise 2 times that"


def test_numbers_must_be_those_announced_and_lr_no_larger(tmp_path: Path):
    site = joined(tmp_path)
    hello(site, {**FAIR, "method": "fedavg", "options": {"lr": 0.1}})
    terms, x = site._experiments["e"].terms, {"x": torch.zeros(1, 6)}

    def check(**hyper: Any) -> None:
        key = int(rng.key(1, 1, 0, 0)[0])
        step = "fedkin.methods.fedavg:local_sgd"
        terms.check(x, {"kind": "work", "contender": "method", "place": [1, 1, 0, 0], "client": 0,
                        "key": key, "step": step, "hyper": hyper, "remember": True,
                        "variant": {}})  # fmt: skip

    check(lr=0.1, local_steps=10)
    check(lr=0.05, local_steps=10)  # as schedules do
    with pytest.raises(PolicyError, match=r"lr = 0\.2, and 0\.1 was announced"):
        check(lr=0.2, local_steps=10)
    with pytest.raises(PolicyError, match="local_steps = 1, and 10 was announced"):
        check(lr=0.1, local_steps=1)
    x["x"][0, 0] = torch.inf
    with pytest.raises(PolicyError, match="not finite"):
        check(lr=0.1, local_steps=10)


def test_requests_and_runs_and_resamples_are_counted_also_over_restarts(tmp_path: Path):
    limits = SitePolicy(most_requests=3, most_runs=2, most_resampled=1)
    site = joined(tmp_path, limits)
    hello(site, FAIR)
    ask(site, 1)
    ask(site, 2)
    again = SiteWorker("a", site.data, site.home, say=lambda _: None, policy=limits)
    ask(again, 3)
    with pytest.raises(PolicyError, match="more than the 3 requests allowed"):
        ask(again, 4)
    hello(again, FAIR, "second")
    with pytest.raises(PolicyError, match="taken part in 2 runs: its limit"):
        hello(again, FAIR, "third")
    terms = again._experiments["second"].terms
    judged = {"kind": "work", "contender": "method", "place": [1, 1, 0, 0], "client": 0,
              "key": int(rng.key(1, 1, 0, 0)[0]), "step": JUDGE, "remember": False, "variant": {},
              "hyper": {"make": USE, "part": "test", "metrics": "auc", "resamples": 9}}  # fmt: skip
    terms.check({"model": torch.zeros(1, 6)}, judged)
    with pytest.raises(PolicyError, match="more than 1 resampled"):
        terms.check({"model": torch.zeros(1, 6)}, judged)


def test_what_was_agreed_is_shown_and_kept_before_the_first_answer(tmp_path: Path):
    asked: list[list[str]] = []

    def agree(words: list[str]) -> bool:
        asked.append(words)
        assert len(asked) > 2 or not (tmp_path / "home" / "agreements.jsonl").exists()
        return len(asked) > 1

    site = joined(tmp_path, agree=agree, server="10.0.0.1:8000")
    with pytest.raises(PolicyError, match="do not agree"):
        hello(site, FAIR)
    hello(site, FAIR)
    hello(site, FAIR)
    assert len(asked) == 2  # once agreed, nobody is asked again
    shown = "\n".join(asked[1])
    for words in ("10.0.0.1:8000 asks 'a'", "perm, 300 rounds", "age, identity_number", "sick",
                  "gradient_at", "minibatches of 8 rows"):  # fmt: skip
        assert words in shown
    kept = json.loads((tmp_path / "home" / "memory" / "e" / "agreed.json").read_text())
    assert (kept["setup"], kept["words"]) == (FAIR, asked[1])
    hello(site, {**FAIR, "rounds": 200})  # a change of rounds is agreed to anew
    assert len(asked) == 3
    with pytest.raises(PolicyError, match="not the run that this site agreed to"):
        hello(site, {**FAIR, "seed": 2})
    with pytest.raises(PolicyError, match="was ended here"):
        ask(site, 1)


def test_no_method_lets_models_that_are_kept_at_home_be_asked_for():
    for method in ("ditto", "pfedme", "l2sgd", "feddeper", "local", "apfl", "fedper"):
        steps = StepsOf.of(all_methods()[method]())
        made = {step.partition(":")[2] for step in steps.models - steps.work}
        assert made & {"own", "own_model", "mix_with", "put_together"}
        assert not steps.looks


def test_a_check_shows_the_limits_and_tries_a_config(tmp_path: Path):
    data, policy = write_table(tmp_path), tmp_path / "site.toml"
    policy.write_text('columns = ["age"]\ntarget = "sick"\nleast_batch = 10\n')
    found = checking.limits(policy, "", "")
    assert (found.columns, found.target, found.least_batch) == (["age"], "sick", 10)
    assert checking.limits(policy, "age, identity_number", "").columns == ["age", "identity_number"]
    lines = "\n".join(checking.report("a", data, found, None))
    assert "least_batch = 10" in lines
    assert "60 rows, columns age, identity_number, sick" in lines
    config = write_config(tmp_path, "fedavg", 2)
    text = config.read_text().replace('name = "npz"', 'target_column = "sick"')
    config.write_text(text.replace("classes = 3", 'features = ["age"]\nclasses = ["no", "yes"]'))
    lines = "\n".join(checking.report("a", data, found, config))
    assert "this site would take part; it would tell: train 45, test 15" in lines
    with pytest.raises(PolicyError, match="uses the column 'age'"):
        checking.report("a", data, SitePolicy(columns=["identity_number"]), config)


def test_a_service_names_its_columns_and_without_a_terminal_nobody_is_asked(tmp_path: Path):
    data = write_table(tmp_path)
    with pytest.raises(FedkinError, match="--columns age,bmi"):
        checking.agree_by(SitePolicy(), data, yes=True, say=print)
    with pytest.raises(FedkinError, match="with --yes"):
        checking.agree_by(SitePolicy(), data, yes=False, say=print)
    said: list[str] = []
    limits = SitePolicy(columns=["age"], target="sick")
    assert checking.agree_by(limits, data, yes=True, say=said.append)(["words"])
    assert said == ["words"]
