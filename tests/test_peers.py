"""The scripts that run other frameworks fit the task they are given; none is installed here."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from bench.peers import __main__ as peers
from bench.peers.task import TASKS, Task, all_examples, examples, read_task


@pytest.mark.parametrize("name", ["fedkin", *peers.PEERS])
def test_each_framework_has_a_script_that_reads_the_task_and_tells_its_times(name: str) -> None:
    tree = ast.parse((peers.HERE / f"run_{name}.py").read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {a.name for node in found if node.module == "task" for a in node.names}
    assert {"read_task", "tell"} <= names
    own = ast.parse((peers.HERE / "task.py").read_text()).body
    assert names <= {n.name for n in own if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def test_a_task_is_read_as_it_was_written(tmp_path: Path) -> None:
    task = Task("small", (6, 10), (6,), 3, 4, 2, 3, batch=2)
    task.write(tmp_path)
    assert read_task(tmp_path) == task
    x, y = all_examples(tmp_path)
    assert x.shape == (3, 4, 6)
    own = examples(tmp_path, 1)
    np.testing.assert_array_equal(own[0].numpy(), x[1])
    np.testing.assert_array_equal(own[1].numpy(), y[1])


def test_passes_are_as_many_steps_or_none() -> None:
    assert {t.name: t.epochs for t in TASKS} == {"W1": 0, "W2": 2, "W3": 1, "W4": 1, "FLUTE": 1}
    for task in TASKS:
        if task.epochs:
            assert task.epochs * task.samples == task.steps * task.batch
