"""Runs whose shards are lost end as if nothing had happened."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pandas as pd
import pytest
import torch

from fedkin.core.problem import Problem
from fedkin.engines.ray.connection import RaySettings, connect
from fedkin.errors import FedkinError
from fedkin.methods.scaffold import Scaffold
from fedkin.runs.folder import RunFolder
from fedkin.runs.settings import Settings
from fedkin.runs.train import cluster_of
from fedkin.runs.training import Trainer

SETTINGS = {
    "rounds": 6, "eval_every": 2, "checkpoint_every": 2, "seed": 3, "strategy": "native:3:1x1",
}  # fmt: skip


def trained(
    problem: Problem, folder: Path | None, strike: int | None, **options: object
) -> Trainer:
    """A run of SCAFFOLD on two shards; before round `strike` one's process is killed with -9."""
    settings = Settings(**{**SETTINGS, "engine": "ray", "shards": 2, **options})  # type: ignore[arg-type]
    kept = RunFolder.create(folder, "method = 'scaffold'\n") if folder else None
    cluster = cluster_of(problem, settings, kept)
    trainer = Trainer(problem, Scaffold(lr=0.05, local_steps=3), settings, kept, cluster=cluster)
    assert cluster is not None

    def after_round(_: object) -> None:
        nonlocal strike
        if strike is not None and trainer.round + 1 == strike:
            strike = None
            os.kill(cluster.shards.call(1, "process"), signal.SIGKILL)

    try:
        trainer.run(after_round)
    finally:
        cluster.shards.close_actors()
    return trainer


def test_a_killed_shard_is_restored_and_the_run_ends_as_without_it(
    local_ray: None, small: Problem, tmp_path: Path
) -> None:
    expected = Trainer(small, Scaffold(lr=0.05, local_steps=3), Settings(**SETTINGS))  # type: ignore[arg-type]
    expected.run()
    struck = trained(small, tmp_path / "struck", strike=4)
    table = pd.read_csv(tmp_path / "struck" / "metrics.csv")
    whole = pd.DataFrame(expected.metrics)
    assert table["round"].tolist() == [1, 2, 3, 4, 5, 6]
    for name in ("personal_loss", "local_loss", "bytes_up", "gradients"):
        pd.testing.assert_series_equal(
            table[name].astype(float), whole[name].astype(float), rtol=1e-9
        )
    assert "shard 2 of 2 was lost: started again" in (tmp_path / "struck" / "log.txt").read_text()
    assert struck.round == 6


@pytest.mark.slow
def test_without_a_folder_a_lost_shard_costs_nothing_either(
    local_ray: None, small: Problem
) -> None:
    expected = Trainer(small, Scaffold(lr=0.05, local_steps=3), Settings(**SETTINGS))  # type: ignore[arg-type]
    expected.run()
    struck = trained(small, None, strike=4)
    for name in ("x", "c"):
        torch.testing.assert_close(
            getattr(struck.contenders["method"].state, name),
            getattr(expected.contenders["method"].state, name), rtol=0, atol=1e-10,
        )  # fmt: skip
    assert [row["round"] for row in struck.metrics] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_where_losses_are_skipped_the_others_go_on_and_the_shard_comes_back(
    local_ray: None, small: Problem, tmp_path: Path
) -> None:
    trainer = trained(small, tmp_path / "skip", strike=4, on_loss="skip")
    assert trainer.round == 6
    gradients = trainer.contenders["method"].fed.accounts.column("gradients")
    border = trainer.cluster.shards.borders[1]  # type: ignore[union-attr]
    assert gradients[:border].tolist() == [18] * border
    assert all(9 <= n < 18 for n in gradients[border:].tolist())
    assert "takes part again from round 5" in (tmp_path / "skip" / "log.txt").read_text()


def test_an_address_without_a_cluster_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(FedkinError, match=r"there is no Ray cluster at 127.0.0.1:9"):
        connect(RaySettings(address="127.0.0.1:9"))
    with pytest.raises(FedkinError, match="write HOST:PORT, or auto"):
        connect(RaySettings(address="nowhere"))


def test_a_ray_of_our_own_is_reached_from_this_machine_alone(local_ray: None) -> None:
    import ray

    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]


def test_more_shards_than_clients_are_refused(local_ray: None, small: Problem) -> None:
    with pytest.raises(FedkinError, match="6 shards are more than the 5 clients"):
        cluster_of(small, Settings(engine="ray", shards=6), None)


def test_shards_that_do_not_fit_the_cluster_are_refused_with_what_is_free(
    local_ray: None, small: Problem
) -> None:
    settings = Settings(engine="ray", shards=1, gpus_per_shard=64, ray_timeout=0.5)
    with pytest.raises(FedkinError, match=r"did not start within 0\.5 seconds: the cluster has"):
        cluster_of(small, settings, None)
