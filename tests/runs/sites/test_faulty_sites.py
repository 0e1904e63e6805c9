"""A site that answers nonsense is left out and named; the others go on as if it were not there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.runs.sites.conftest import World
from tests.runs.sites.faulty_site import misbehave
from tests.runs.sites.world import Process, all_ended, embedded, run_over, write_config

BAD = "zz-faulty"


def spoilt_run(world: World, folder: Path, huge: str) -> tuple[list[str], str]:
    data = shutil.copy(world.files["clinic-a"], folder / "bad.npz")
    config = write_config(folder, "fedavg", rounds=8, lr=0.1)
    words = [world.link.place.address, BAD, data, folder / "home", huge]
    with all_ended() as processes:
        processes.append(Process(misbehave, words, folder / "bad.log"))
        trainer, said = run_over(world.link, config, folder / "run", clients=4)
    here = embedded(config, world.files)
    torch.testing.assert_close(
        trainer.contenders["method"].state.x,
        here.contenders["method"].state.x,
        rtol=1e-5,
        atol=1e-5,
    )
    return said, (folder / "run" / "log.txt").read_text()


@pytest.mark.slow
def test_nonsense_is_left_out_and_named(world: World, tmp_path: Path):
    said, log = spoilt_run(world, tmp_path, huge="zeros:20_000_000")
    for number, reason in {
        1: "not finite",
        2: "float32[1, 7] where others' are",
        3: "something else",
        4: "larger than the",
        5: "cannot be read",
        6: "not one row each",
        7: "ZeroDivisionError",
        8: "counts of work",
    }.items():
        (sentence,) = [s for s in said if f"round {number}: the answer of '{BAD}'" in s]
        assert reason in sentence
    assert f"round 1: left out answers that are not finite: {BAD}" in log
    assert len([s for s in said if "is left out:" in s]) == 8
    assert any(f"'{BAD}' answered" in s and "8 were left out" in s for s in said)
    assert not [s for s in said if "on purpose" in s]  # what an error quotes stays at the site


@pytest.mark.slow
@pytest.mark.parametrize("huge", [f"zeros:{2**29}", f"noise:{2**27}"])
def test_an_array_of_gigabytes_is_left_out(world: World, tmp_path: Path, huge: str):
    said, _ = spoilt_run(world, tmp_path, huge)
    assert [s for s in said if f"round 4: the answer of '{BAD}'" in s and "larger than" in s]
