"""What clients remember: in RAM or in files, and never more of it in RAM than allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedkin.core.memory import Budget, FileTable, Memory, RamTable
from fedkin.core.problem import Problem
from fedkin.models import build
from fedkin.runs.checkpoint import latest, save
from fedkin.runs.settings import parse_size
from fedkin.runs.train import train
from tests.forks import Forks
from tests.helpers import blobs


def rows(*numbers: float) -> Tensor:
    return torch.tensor(numbers)[:, None].repeat(1, 3)


@pytest.fixture(params=[None, 0], ids=["RAM", "file"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Memory:
    return Memory(5, Budget(request.param), tmp_path)


def test_rows_come_back_and_others_take_the_default(memory: Memory) -> None:
    memory.write("v", torch.tensor([3, 1]), rows(30.0, 10.0))
    found = memory.read("v", torch.arange(5), torch.zeros(1, 3))
    assert torch.equal(found, rows(0.0, 10.0, 0.0, 30.0, 0.0))
    memory.write("v", torch.tensor([1]), rows(11.0))
    assert torch.equal(memory.read("v", torch.tensor([1, 1]), rows(0.0)), rows(11.0, 11.0))


def test_what_was_saved_is_restored_piece_by_piece(
    memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedkin.core.memory.CHUNK_BYTES", 30)  # two rows at a time
    memory.write("v", torch.tensor([0, 4]), rows(1.5, -2.5))
    memory.write("n.x", torch.tensor([2]), torch.tensor([[7]]))
    save(tmp_path / "checkpoint", 1, memory.state(), {})
    found, _ = latest(tmp_path / "checkpoint")
    assert found
    again = Memory(5, Budget(0), tmp_path)
    again.restore(found.tensors())
    everyone = torch.arange(5)
    for name, default in {"v": torch.full((1, 3), 9.0), "n.x": torch.tensor([[9]])}.items():
        expected = memory.read(name, everyone, default)
        assert torch.equal(again.read(name, everyone, default), expected)


def test_tables_that_exceed_the_budget_live_in_files(tmp_path: Path) -> None:
    budget = Budget(5 * 3 * 4 + 10)
    first, second = Memory(5, budget, tmp_path), Memory(5, budget, tmp_path)
    first.write("small", torch.tensor([0]), rows(1.0))
    second.write("large", torch.tensor([0]), rows(1.0))  # the contenders of a run share the budget
    second.write("tiny", torch.tensor([0]), torch.ones(1, 1, dtype=torch.uint8))
    assert isinstance(first.tables["small"], RamTable)
    assert isinstance(second.tables["large"], FileTable)
    assert isinstance(second.tables["tiny"], RamTable)
    assert list(tmp_path.iterdir()) == []  # nothing to clean up, however the process ends


@pytest.mark.parametrize("name", ["apfl", "l2sgd", "submodel-ditto"])
def test_where_memory_lives_changes_no_bit(name: str, tmp_path: Path) -> None:
    problem = Problem(build("mlp:8", (5,), 3), blobs(), batch_size=6)
    settings = {"rounds": 3, "eval_every": 1, "strategy": "native:3:1x1"}
    for memory in (None, "1KB"):
        train(problem, name, folder=tmp_path / str(memory), memory=memory, **settings)
    for file in ("metrics.csv", "clients.csv", "models/client-0004.safetensors"):
        paths = (tmp_path / memory / file for memory in ("None", "1KB"))
        assert len({path.read_bytes() for path in paths}) == 1


def test_sizes_are_read_as_people_write_them() -> None:
    sizes = {"500MB": 5 * 10**8, "2GB": 2 * 10**9, " 1.5 kb ": 1500, "77": 77}
    assert {text: parse_size(text) for text in sizes} == sizes
    assert parse_size(None) is None


def test_a_run_with_much_state_stays_small(forks: Forks, tmp_path: Path) -> None:
    """200 MB of personal models, of which 20 MB may be resident: run, checkpoint, resume."""
    model = ("--model", "mlp:8333", "--local-steps", 1, "--batch-size", 2, "--no-baseline", "-q")
    data = ("--data", "linear", "--samples", 4, "--dim", 10, "--rounds", 1, "--memory", "20MB")

    def peak(clients: int) -> list[int]:
        run = tmp_path / str(clients)
        begun = forks.run("run", "apfl", "--out", run, "--num-clients", clients, *data, *model)
        (run / "models").rename(tmp_path / f"{clients}-models")
        resumed = forks.run("resume", run, "-q")
        assert (begun.code, resumed.code) == (0, 0)
        return [begun.peak, resumed.peak]

    few, many = peak(10), peak(500)
    assert max(many) - max(few) < 150e6  # of 200 MB, with blocks being worked on
