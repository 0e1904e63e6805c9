"""Items: run once, measured, refused when they are no longer the same, honest about data."""

import threading
from dataclasses import replace
from itertools import count

import numpy as np
import pandas as pd
import pytest

from fedkin.command.runs import complete
from fedkin.errors import FedkinError
from fedkin.papers import execution
from fedkin.papers.claims import above, between
from fedkin.papers.execution import StoppedError, run
from fedkin.papers.item import Line, Panel, StandIn
from fedkin.papers.measures import Measure
from fedkin.papers.outcome import outcome
from fedkin.papers.planning import MissingDataError, plan, stages
from fedkin.papers.presentation import verdicts
from tests.papers.helpers import LINES, RUN, item, panel


def go(what, out, rounds=None, **options):
    """Run an item; gives the labels of the rounds done and the outcome."""
    job = plan("paper", what, options.pop("scale", "small"), out, rounds=rounds, **options)
    told = []
    run(job, complete, told.append, threading.Event())
    return told, outcome("paper", what, job.scale, job.parent)


def test_an_item_is_run_once_and_then_read(tmp_path):
    told, first = go(item(), tmp_path)
    assert sorted(told) == ["digits/fedavg"] * 4 + ["digits/pfedkm-k=2"] * 4  # 2 seeds, 2 rounds
    again, second = go(item(), tmp_path)
    assert not again
    assert second.values == first.values
    assert set(first.values) == {
        ("digits", line.label, name) for line in LINES for name in ("accuracy", "loss")
    }
    clients = pd.read_csv(tmp_path / "paper/small/digits/fedavg/seed-1/clients.csv")
    last = clients[clients["round"] == 2]
    right = np.average(last["personal_accuracy"], weights=last["test_samples"])
    assert first.values["digits", "FedAvg", "accuracy"][1] == pytest.approx(100 * right)
    assert first.seconds > 0


def test_more_seeds_add_to_what_is_there(tmp_path):
    go(item(), tmp_path)
    told, found = go(item(), tmp_path, seeds=3)
    assert len(told) == 4
    assert set(found.values["digits", "FedAvg", "loss"]) == {0, 1, 2}


def test_items_that_share_a_panel_share_its_runs(tmp_path):
    go(item(), tmp_path)
    told, found = go(item(number="8"), tmp_path)
    assert not told
    assert found.folder.name == "table-8"


def test_the_papers_scale_and_trials_have_folders_and_rounds_of_their_own(tmp_path):
    told, _ = go(item(), tmp_path, scale="paper", seeds=1)
    assert len(told) == 2 * 4
    told, found = go(item(), tmp_path, rounds=1, seeds=1)
    assert len(told) == 2
    assert found.panels[0].rounds == 1
    assert {path.name for path in (tmp_path / "paper").iterdir()} == {"paper", "small-1-rounds"}


def test_small_scale_leaves_out_panels_that_are_too_large_for_it(tmp_path):
    what = item(panel(), panel("large", small=None))
    _, found = go(what, tmp_path)
    assert [p.name for p in found.panels] == ["digits"]
    assert [p.name for p in found.left_out] == ["large"]
    with pytest.raises(FedkinError, match="not part of the small scale"):
        plan("paper", item(panel(small=None)), "small", tmp_path)


def test_panels_that_are_run_together_give_what_they_give_one_by_one(tmp_path):
    panels = panel(), panel("more", run=RUN | {"data": RUN["data"] | {"alpha": 0.3}})
    told, together = go(item(*panels, together=True), tmp_path / "together")
    assert len(told) == 2 * len(go(item(panels[0]), tmp_path / "one")[0])
    _, single = go(item(*panels), tmp_path / "single")
    assert set(together.values) == set(single.values)
    for key, values in single.values.items():
        assert together.values[key] == pytest.approx(values, rel=1e-5)
    assert together.seconds > 0


def test_panels_can_be_run_one_after_the_other(tmp_path):
    what = item(panel(), panel("more"))
    _, found = go(what, tmp_path, only=["more"])
    assert [p.name for p in found.left_out] == ["digits"]
    _, found = go(what, tmp_path, only=["digits"])
    assert not found.left_out
    assert {key[0] for key in found.values} == {"digits", "more"}
    with pytest.raises(FedkinError, match="did you mean 'digits'"):
        plan("paper", what, "small", tmp_path, only=["digit"])


def test_runs_of_another_recipe_are_not_taken_for_this_ones(tmp_path):
    go(item(), tmp_path)
    faster = (Line("FedAvg", "fedavg", {"lr": 0.2}), LINES[1])
    with pytest.raises(FedkinError, match="other settings than the recipe"):
        go(item(panel(lines=faster)), tmp_path)


def test_personal_models_and_checkpoints_are_dropped_once_measured(tmp_path):
    go(item(), tmp_path)
    for label, kept in (("fedavg", ["global.safetensors"]), ("pfedkm-k=2", [])):
        folder = tmp_path / "paper/small/digits" / label / "seed-0"
        assert [path.name for path in (folder / "models").iterdir()] == kept
        assert not (folder / "checkpoint").exists()
        assert (folder / "metrics.csv").exists()


def test_what_is_read_off_models_is_written_down_before_they_are_dropped(tmp_path):
    def count(run):
        return float(len(list((run.path / "models").glob("*.safetensors"))))

    once = Measure("models", "number of models", count, once=True)
    what = item(measures=(once,), claims=(), pictures=())
    _, found = go(what, tmp_path, seeds=1)
    expected = {
        ("digits", "FedAvg", "models"): {0: 5.0},
        ("digits", "pFedKM K=2", "models"): {0: 4.0},
    }
    assert found.values == expected
    _, found = go(what, tmp_path, seeds=2)
    assert found.values == {key: {0: n[0], 1: n[0]} for key, n in expected.items()}


def test_a_line_that_diverges_is_told_and_does_not_stop_the_others(tmp_path):
    lines = (*LINES, Line("wild", "fedavg", {"lr": 1e6}))
    steep = RUN | {"model": {"name": "linear", "l2": 1.0}}
    told, found = go(item(panel(lines=lines, run=steep)), tmp_path)
    assert all(value != value for value in found.values["digits", "wild", "accuracy"].values())
    assert found.values["digits", "FedAvg", "accuracy"][0] > 0
    again, same = go(item(panel(lines=lines, run=steep)), tmp_path)
    assert told
    assert not again  # what diverged is not run again either
    assert all(value != value for value in same.values["digits", "wild", "accuracy"].values())


def test_what_is_stopped_goes_on(tmp_path):
    stop, told = threading.Event(), []

    def after_three(label):
        told.append(label)
        if len(told) == 3:
            stop.set()

    with pytest.raises(StoppedError):
        run(plan("paper", item(), "small", tmp_path), complete, after_three, stop)
    more, found = go(item(), tmp_path)
    assert len(told) + len(more) == 8
    assert len(found.values) == 4


def test_runs_whose_seconds_count_are_run_one_at_a_time_and_a_seeds_side_by_side(tmp_path):
    told, _ = go(item(panel(alone=True)), tmp_path)
    assert told == (["digits/fedavg"] * 2 + ["digits/pfedkm-k=2"] * 2) * 2


def test_an_experiment_is_a_function_of_the_seed(tmp_path):
    calls = []

    def thrown(seed, sides):
        calls.append(seed)
        return {"die": {"loss": float(seed % sides)}}

    dice = Panel("dice", "Dice", {"sides": 2}, (Line("die"),), experiment=thrown)
    _, found = go(item(dice, claims=()), tmp_path, seeds=3)
    assert found.values == {("dice", "die", "loss"): {0: 0.0, 1: 1.0, 2: 0.0}}
    go(item(dice, claims=()), tmp_path, seeds=4)
    assert calls == [0, 1, 2, 3]  # what is there is not computed again, unless values differ
    go(item(replace(dice, run={"sides": 3}), claims=()), tmp_path, seeds=1)
    assert calls == [0, 1, 2, 3, 0]


def test_an_experiment_is_stopped_after_a_seed_and_goes_on(tmp_path):
    calls, stop = [], threading.Event()

    def thrown(seed, sides):
        calls.append(seed)
        stop.set()
        return {"die": {"loss": float(seed % sides)}}

    dice = Panel("dice", "Dice", {"sides": 2}, (Line("die"),), experiment=thrown)
    job = plan("paper", item(dice, claims=()), "small", tmp_path, seeds=3)
    with pytest.raises(StoppedError):
        run(job, complete, print, stop)
    assert calls == [0]
    _, found = go(item(dice, claims=()), tmp_path, seeds=3)
    assert calls == [0, 1, 2]
    assert found.values == {("dice", "die", "loss"): {0: 0.0, 1: 1.0, 2: 0.0}}


def test_experiments_that_train_models_do_so_on_the_device_that_was_asked_for(tmp_path):
    trains = Panel("trains", "Trains", {"model": {"name": "mlp:8"}}, (Line("die"),),
                   experiment=lambda seed, **run: {})  # fmt: skip
    dice = replace(trains, name="dice", run={"sides": 2})
    job = plan("paper", item(trains, dice, claims=()), "small", tmp_path, device="cuda")
    assert job.panels[0].run["model"] == {"name": "mlp:8", "device": "cuda"}
    assert job.panels[1].run == {"sides": 2}


# data ---------------------------------------------------------------------------------------

WRITERS = panel(
    "writers",
    run=RUN | {"data": {"name": "npz", "path": "writers.npz", "partition": "column"}},
    fetch="the writers are needed: put writers.npz into --data-dir",
    stand_in=StandIn({"name": "digits", "num_clients": 3}, "digits split at random"),
)


def test_missing_data_say_what_to_fetch_and_that_there_is_a_stand_in(tmp_path):
    with pytest.raises(MissingDataError, match=r"put writers\.npz .* --stand-in .* digits split"):
        plan("paper", item(WRITERS), "small", tmp_path)
    without = replace(WRITERS, stand_in=None)
    with pytest.raises(MissingDataError, match=r"--data-dir$"):
        plan("paper", item(without), "small", tmp_path)


def test_panels_with_their_data_run_without_those_that_miss_theirs(tmp_path):
    job = plan("paper", item(panel(), WRITERS), "small", tmp_path)
    assert [p.name for p in job.panels] == ["digits"]
    assert len(job.missing) == 1


def test_a_stand_in_is_used_only_when_asked_and_says_so(tmp_path):
    _, found = go(item(WRITERS), tmp_path, stand_in=True)
    assert "STAND-IN" in found.panels[0].title
    assert found.stands_in
    assert (tmp_path / "paper/small/writers-stand-in").is_dir()


@pytest.mark.parametrize("by_option", [True, False])
def test_data_are_found_by_option_or_environment(tmp_path, monkeypatch, by_option):
    x = np.random.default_rng(0).random((40, 3), dtype=np.float32)
    place = tmp_path / "data"
    place.mkdir()
    np.savez(place / "writers.npz", x=x, y=np.arange(40) % 2, client=np.arange(40) // 20)
    if not by_option:
        monkeypatch.setenv("FEDKIN_DATA", str(place))
    options = {"data_dir": str(place)} if by_option else {}
    # it is not stood in for, although that is allowed
    _, found = go(item(WRITERS), tmp_path / "out", stand_in=True, **options)
    assert not found.stands_in
    assert ("writers", "FedAvg", "accuracy") in found.values


def test_a_device_may_be_chosen_and_is_no_other_setting(tmp_path):
    job = plan("paper", item(), "small", tmp_path, device="meta")
    assert {e.config.model.device for p in job.panels for e in p.entries(1)} == {"meta"}
    told, _ = go(item(), tmp_path)
    assert told
    told, _ = go(item(), tmp_path, device="cuda")  # all is there: nothing is computed anywhere
    assert not told


# seeds added until claims are settled -----------------------------------------------------------


def test_seeds_are_added_where_a_claim_is_not_settled_and_nowhere_else(tmp_path):
    def thrown(seed, noise):
        return {"coin": {"loss": 1.0 + noise * (-1) ** seed + 1e-3 * seed}}

    sure, doubtful = (
        Panel(name, name, {"noise": noise}, (Line("coin"),), experiment=thrown)
        for name, noise in (("sure", 0.0), ("doubtful", 5.0))
    )
    claims = tuple(between(name, ["coin"], "loss", [name], 0.0) for name in ("sure", "doubtful"))
    what = item(sure, doubtful, claims=claims, pictures=())
    job, seen = plan("paper", what, "small", tmp_path), []
    assert job.looks == (2, 4, 8, 16, 20)
    for stage in stages(job, most=8):
        run(stage, complete, seen.append, threading.Event())
        seen.append((stage.seeds, [p.name for p in stage.panels]))
    assert seen == [(2, ["sure", "doubtful"]), (4, ["doubtful"]), (8, ["doubtful"])]
    found = outcome("paper", what, "small", job.parent)
    assert found.seeds == {"sure": 2, "doubtful": 8}
    assert found.looks == job.looks
    assert [str(one.verdict)[:11] for one in verdicts(found)] == ["holds", "cannot tell"]


@pytest.mark.parametrize("matrix", [False, True])
def test_seeds_are_added_to_lines_that_can_settle_a_claim(tmp_path, matrix):
    twin = Line("twin", "fedavg", {"lr": 0.1})  # never above itself, and never below
    claim = above("", "FedAvg", ("twin",), "loss", ["digits"])
    what = item(panel(lines=(*LINES, twin)), claims=(claim,), pictures=(), matrix=matrix)
    job, told = plan("paper", what, "small", tmp_path), []
    for stage in stages(job, most=4):
        told.clear()
        run(stage, complete, told.append, threading.Event())
    assert ("digits/pfedkm-k=2" in told) == matrix
    found = outcome("paper", what, "small", job.parent)
    counts = {line: len(found.values["digits", line, "loss"]) for line in ("FedAvg", "pFedKM K=2")}
    assert counts == {"FedAvg": 4, "pFedKM K=2": 4 if matrix else 2}


def test_what_it_takes_to_choose_options_is_counted(tmp_path, monkeypatch):
    clock = count(step=10.0)  # every stretch takes ten seconds
    monkeypatch.setattr(execution, "computed", lambda: next(clock))
    line = replace(LINES[0], tune={"lr": (0.1,)})
    assert go(item(panel(lines=LINES[:1]), claims=()), tmp_path / "a")[1].seconds == 10
    assert go(item(panel(lines=(line,)), claims=()), tmp_path / "b")[1].seconds == 20


def test_a_fixed_number_of_seeds_is_one_look(tmp_path):
    assert plan("paper", item(), "small", tmp_path, seeds=7).looks == (7,)


def test_no_more_models_than_those_of_one_method_are_on_the_disk_at_a_time(tmp_path):
    there = []

    def look(run):
        there.append({place.parents[1].name for place in tmp_path.rglob("checkpoint")})
        return 0.0

    once = Measure("count", "count", look, once=True)
    go(item(measures=(once,), claims=(), pictures=()), tmp_path, seeds=2)
    assert set().union(*there) == {"fedavg", "pfedkm-k=2"}
    assert all(len(methods) == 1 for methods in there)
