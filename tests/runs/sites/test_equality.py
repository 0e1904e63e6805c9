"""Over Flower a method gives the embedded engine's numbers, and data stay where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.engines.flower.store import Store
from fedkin.runs.models import models_of
from fedkin.runs.sites.plan import Plan
from fedkin.runs.training import Trainer
from fedkin.tensors import read_facts, read_tensors
from tests.helpers import assert_states_close
from tests.runs.sites.conftest import World
from tests.runs.sites.world import NAMES, digits, embedded, run_over, write_config

RUNS: dict[str, dict[str, Any]] = {
    "fedavg": {"rounds": 3, "lr": 0.1},
    "scaffold": {"rounds": 3, "lr": 0.1},
    "pfedme": {"rounds": 2, "baseline": True, "local_steps": 3},
    "perm": {"rounds": 4, "warm_up": 1, "lr": 0.05, "local_steps": 3},
}


def personal_models(trainer: Trainer) -> torch.Tensor:
    contender = trainer.contenders["method"]
    contender.fed.after_round(trainer.round)
    request = contender.method.personal(contender.fed, contender.state)
    return torch.cat(list(models_of(contender.fed, request)))


# test_all_methods.py has every method without processes
LONG = {"pfedme", "scaffold", "perm"}
CASES = [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in RUNS]


@pytest.mark.parametrize("method", CASES)
def test_sites_give_the_embedded_engines_numbers(world: World, tmp_path: Path, method: str):
    config = write_config(tmp_path, method, **RUNS[method])
    served, said = run_over(world.link, config, tmp_path / "run")
    here = embedded(config, world.files)
    assert not [sentence for sentence in said if "left out" in sentence]
    ours, theirs = (each.contenders["method"].state for each in (served, here))
    assert_states_close(ours, theirs, 1e-5, 1e-5)
    for column, value in here.metrics[-1].items():
        found = served.metrics[-1][column]
        assert found == (value if value is None else pytest.approx(value, abs=1e-5)), column
    layout = here.problem.layout
    for name, model in zip(NAMES, personal_models(here), strict=True):
        path = world.folder / name / "model.safetensors"
        own = layout.join({k: v[None] for k, v in read_tensors(path).items()})[0]
        torch.testing.assert_close(own, model, rtol=1e-5, atol=1e-5)
        assert read_facts(path)["client"] == name


@pytest.mark.slow
def test_the_server_has_metrics_but_no_personal_models(world: World, tmp_path: Path):
    config = write_config(tmp_path, "pfedme", rounds=1, local_steps=1)
    run_over(world.link, config, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.csv").exists()
    assert (tmp_path / "run" / "clients.csv").exists()
    kept = [path.name for path in (tmp_path / "run" / "models").iterdir()]
    assert kept == ["global.safetensors"]


def test_no_sample_is_among_the_bytes_a_site_sends(world: World, tmp_path: Path):
    config = write_config(tmp_path, "fedavg", rounds=1)
    run_over(world.link, config, tmp_path / "run")
    sent = world.recorder.up
    # what was recorded can be read: the answer that the site has kept is in it
    plan = Plan.read(tmp_path / "run")
    kept = Store(world.folder / NAMES[0] / "memory" / plan.experiment / "method").now()
    assert kept.answer[0]["dx"].numpy().tobytes() in sent
    data = np.load(world.files[NAMES[0]])
    for labels in (data["y"], data["y"].astype(np.uint8)):
        assert labels[:20].tobytes() not in sent
    for row in data["x"]:
        for numbers in (row, row.astype(np.float64)):
            assert numbers[:2].tobytes() not in sent
        assert digits(row[0]) not in sent
