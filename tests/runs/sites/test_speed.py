"""Seconds per round for a model of 0.8 MB and three sites on this machine."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from tests.runs.sites.conftest import World
from tests.runs.sites.world import run_over, write_config


@pytest.mark.slow
def test_a_round_takes_at_most_three_seconds(world: World, tmp_path: Path):
    config = write_config(tmp_path, "fedavg", rounds=10, model="mlp:420,460")
    trainer, _ = run_over(world.link, config, tmp_path / "run")
    assert trainer.problem.size * 4 > 780_000
    assert median(row["seconds"] for row in trainer.timing) <= 3
