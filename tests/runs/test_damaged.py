"""Nothing that a run folder says is believed: see `damaged.py`, which tries thousands."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedkin.errors import FedkinError
from fedkin.runs.inputs import Inputs
from fedkin.runs.reading import read_table
from fedkin.runs.stored import open_run
from fedkin.tensors import write_tensors
from tests.runs.damaged import command, make_runs, try_one


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    before = os.getcwd()
    place = tmp_path_factory.mktemp("damaged")
    os.chdir(place)
    found = make_runs(place)
    os.chdir(before)
    return found


@settings(
    max_examples=15, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(rng=st.randoms(use_true_random=False))
def test_a_damaged_folder_gets_a_sentence(
    runs: list[Path], tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    place = tmp_path_factory.getbasetemp() / "copy"
    what, wrong, _ = try_one(runs, place, rng, count=1)
    assert not wrong, f"{what}\n{wrong[0]}"


def changed(run: Path, to: Path, **facts: object) -> Path:
    """A copy of inputs.json with some other values."""
    to.mkdir(exist_ok=True)
    text = json.loads((run / "inputs.json").read_text())
    (to / "inputs.json").write_text(json.dumps({**text, **facts}))
    return to


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"dtype": "load"}, r"inputs\.json: unknown dtype 'load'"),
        ({"input_dtype": "_C"}, r"inputs\.json: .*'_C'"),
        ({"input_shape": [10**12]}, r"inputs\.json: input_shape\.0 should be less than or equal"),
        ({"input_shape": [3, 10**7, 10**7]}, r"at most 100000000 numbers"),
        ({"outputs": 10**15}, "outputs should be less than or equal"),
        ({"clients": []}, "clients tuple should have at least 1 item"),
        ({"clients": "abc"}, "clients should be a"),
        ({"class_names": ["a"], "num_classes": 2}, r"as many class_names \(1\) as num_classes"),
        ({"preparation": None}, "preparation should be"),
    ],
)
def test_inputs_are_bounded_before_anything_is_allocated(
    runs: list[Path], tmp_path: Path, facts: dict[str, object], sentence: str
) -> None:
    with pytest.raises(FedkinError, match=sentence):
        Inputs.load(changed(runs[0], tmp_path, **facts))


def test_a_model_larger_than_its_file_is_not_built(runs: list[Path], tmp_path: Path) -> None:
    changed(runs[0], tmp_path)
    (tmp_path / "models").mkdir()
    write_tensors(tmp_path / "models" / "client-0000-a.safetensors", {"a": torch.zeros(9)})
    text = (runs[0] / "config.toml").read_text().replace("mlp:4", "mlp:900000000,900000000")
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(FedkinError, match=r"describe a model of .* MB, and no file in"):
        open_run(tmp_path).personal.at(0)


def test_code_in_a_run_folder_is_not_run(runs: list[Path], tmp_path: Path) -> None:
    changed(runs[0], tmp_path)
    (tmp_path / "models").mkdir()
    code = tmp_path / "net.py"
    code.write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')\n")
    for name in (f"{code}:Net", "net.py:Net"):
        text = (runs[0] / "config.toml").read_text().replace("mlp:4", name)
        (tmp_path / "config.toml").write_text(text)
        with pytest.raises(FedkinError, match="such code is not run"):
            open_run(tmp_path).personal.at(0)
        code_, said = command("resume", tmp_path)
        assert code_ == 2
        assert "such code is not run" in said
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("round,loss\n1,words\n", "column 'loss' has 'words' where numbers belong"),
        ("round,loss\n1,NaN\n", "column 'loss' has 'NaN' where numbers belong"),
        ("round,loss\n1,True\n", "column 'loss' has 'True' where numbers belong"),
        ("round,loss\n2,1\n1,1\n", "the round in row 2 is 1"),
        ("round,loss\n1.5,1\n", "the round in row 1 is 1.5"),
        ("round,client,loss\n1,,1\n", "column 'client' is empty in row 1"),
        ("a,b\n1,2\n", "it has no column 'round'"),
        ("round,b\n1,2,3,4\n1,2,3,4\n", "it has rows with more cells than columns"),
    ],
)
def test_a_table_says_what_is_wrong_with_it(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(text)
    with pytest.raises(FedkinError, match=f"^{re.escape(str(path))} is damaged: {sentence}"):
        read_table(path, ("round",))


def test_a_row_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("round,loss\n1,0.5\n2,0.2")  # of 0.25
    pd.testing.assert_frame_equal(read_table(path), pd.DataFrame({"round": [1], "loss": [0.5]}))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.csv")
    with pytest.raises(FedkinError, match="is a pipe or device, not a file"):
        read_table(tmp_path / "metrics.csv")
    os.mkfifo(tmp_path / "data.csv")
    code, said = command("run", "local", "--data", tmp_path / "data.csv")
    assert code == 2
    assert "is a pipe or a device: save its content to a file first" in said
    os.mkfifo(tmp_path / "own.py")
    code, said = command("run", f"{tmp_path}/own.py:Own")
    assert code == 2
    assert "own.py is a pipe or device, not a file" in said
