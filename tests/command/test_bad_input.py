"""Whatever is wrong with what a user gives: one sentence, exit code 2, nothing left behind."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.runs.models import file_name, load_model
from fedkin.tensors import write_tensors
from tests.data.conftest import idx_bytes
from tests.helpers import blobs
from tests.run_command import TINY, Fedkin, Said


def refused(said: Said, sentence: str) -> None:
    assert said.code == 2
    assert re.fullmatch(r"fedkin: [^\n]+\n", said.err), said.err
    assert re.search(sentence, said.err), said.err
    assert list(Path.cwd().iterdir()) == []  # no half-made run


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("rnu", r"unknown command 'rnu' \(did you mean 'run'\?\)"),
        ("run", r"Missing argument 'WHAT'; see `fedkin run --help`"),
        ("runs --foo", r"No such option:? '?--foo'?"),
        ("runs", "there is no folder runs"),
        ("resume nowhere", "nowhere is not a run folder"),
        ("config fedavgg", r"unknown method 'fedavgg' \(did you mean 'fedavg'\?\)"),
        ("run pfedm", r"unknown method 'pfedm' \(did you mean 'pfedme'\?\)"),
        ("run local --data mnits", r"unknown data set 'mnits' \(did you mean 'mnist'\?\)"),
        ("run local --model mpl", r"unknown model 'mpl' \(did you mean 'mlp'\?\)"),
        ("run local --model mlp:0", "widths are whole numbers above zero"),
        ("run local --local-step 3", r"unknown option 'local_step' \(did you mean"),
        ("run local --engine wrie", r"unknown engine 'wrie' \(did you mean 'wire'\?\)"),
        ("run local --strategy staked", r"unknown strategy 'staked' .* 'stacked'\?\)"),
        ("run local --strategy native:0:1x1", "strategy 'native:0:1x1' is not understood"),
        ("run local --loss hinj", r"unknown loss 'hinj' \(did you mean 'hinge'\?\)"),
        ("run local --loss logistic", "loss 'logistic' is for 2 classes and a model with 1 output"),
        ("run local --device gpu", "device 'gpu' cannot be used"),
        ("run local --device cuda", "device 'cuda' cannot be used"),
        ("run local --dtype float8", r"unknown model\.dtype 'float8' \(did you mean"),
        ("run local --rounds 0", "rounds should be greater than or equal to 1, but it is '0'"),
        ("run local --rounds -5", "rounds should be greater than or equal to 1"),
        ("run local --rounds many", "rounds should be a whole number"),
        ("run local --rounds", "rounds should be a whole number"),
        ("run local --rounds 2 --global-rounds 3", "given twice"),
        ("run local rounds 2", "'rounds' is not understood: options look like --key value"),
        ("run local --num-clients 0", "num_clients' should be greater than or equal to 1"),
        ("run local --num-clients -2", "num_clients' should be greater than or equal to 1"),
        ("run local --data digits --num-clients 99999", "99999 clients"),
        ("run local --fraction 0", "fraction should be greater than 0"),
        ("run local --fraction nan", "fraction should be a finite number"),
        ("run local --seed -1", "seed should be greater than or equal to 0"),
        (f"run local --seed {2**63}", "seed should be less than"),
        ("run local --lr -1", "method 'local': lr should be greater than 0, but it is '-1'"),
        ("run local --local-steps 0", "local_steps should be greater than or equal to 1"),
        ("run l2sgd --p 1", "p should be less than 1"),
        ("run submodel --kind rollin", r"unknown kind 'rollin' \(did you mean 'rolling'\?\)"),
        ("run local --memory lots", "memory = 'lots' is not a size: write 500MB or 2GB"),
        ("run local --drop 2", r"faults\.drop should be less than or equal to 1"),
        ("run local --partition classes --classes-per-client 11", "classes_per_client is 11 but"),
        ("run local --data linear --model cnn", "a cnn needs images"),
        ("run local --model linear:3", "linear does not take that many widths"),
        (f"run local --data linear --dim {10**15}", "'dim' should be less than or equal to"),
        ("run none.toml", "there is no file none.toml"),
        ("partition digits --rounds 3", r"partition takes keys of \[data\] only"),
        ("partition digits --seed x", "Invalid value for '--seed'"),
        ("partition digits --plot nowhere/a.png", "the picture .* cannot be written"),
        ("partition digits --csv nowhere/a.csv", "cannot use nowhere.*No such file"),
    ],
)
def test_a_mistake_gets_one_sentence(fedkin: Fedkin, words: str, sentence: str) -> None:
    refused(fedkin(*words.split()), sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("method = ", "is not valid TOML"),
        ("\udcff", "is not valid TOML"),
        ('rounds = 3\n', 'names no method: add a line such as method = "fedavg"'),
        ('method = "fedavgg"\n', r"unknown method 'fedavgg' \(did you mean 'fedavg'\?\)"),
        ('method = 3\n', "method should be a string"),
        ('method = "local"\nroundz = 3\n', r"unknown key 'roundz' \(did you mean 'rounds'\?\)"),
        ('method = "local"\n[model]\nnmae = "mlp"\n', r"unknown key 'nmae' \(did you mean 'name'"),
        ('method = "local"\n[data]\nnmae = "mlp"\n', r"unknown data key 'nmae' \(did you mean"),
        ('method = "local"\n[options]\nlrr = 1\n', r"unknown key 'lrr' \(did you mean 'lr'\?\)"),
        ('method = "local"\n[faults]\ndorp = 1\n', r"unknown key 'dorp' \(did you mean 'drop'\?\)"),
        ('method = "local"\nmodel = 3\n', "model should be"),
        ('method = "local"\nrounds = 3\nnum_rounds = 4\n', "gives rounds twice"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_config_file_gets_one_sentence(
    fedkin: Fedkin, tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    refused(fedkin("run", path), sentence)


def table(*changes: tuple[str, object]) -> pd.DataFrame:
    frame = pd.DataFrame(
        {"site": ["a", "b", "c"] * 10, "x": np.arange(30.0), "y": ["well", "ill"] * 15}
    )
    return frame.assign(**dict(changes))


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (
            table(("y", ["well", None] * 15)),
            "target 'y' of table .* is missing or infinite in 15 rows",
        ),
        (table(("y", "well")), "target 'y' of table .* is always well: there is nothing to learn"),
        (table(("site", "a")), "(one|single|1) client"),
        (table().rename(columns={"site": "place"}), "no column 'site'|column 'site'"),
        (table().rename(columns={"y": "z"}), "column 'y'"),
        (table().head(0), "(no rows|empty|no data|0 rows)"),
    ],
)
def test_tables_one_cannot_learn_from(
    fedkin: Fedkin, tmp_path: Path, frame: pd.DataFrame, sentence: str
) -> None:
    frame.to_csv(tmp_path / "table.csv", index=False)
    columns = ("--client-column", "site", "--target-column", "y")
    refused(fedkin("run", "local", "--data", tmp_path / "table.csv", *columns), sentence)


def test_memory_too_small_for_what_a_server_keeps(fedkin: Fedkin, tmp_path: Path) -> None:
    ended = fedkin("run", "perm", "--memory", "1KB", "--out", tmp_path / "run")
    refused(ended, "server of this method keeps .* MB about its clients")
    assert not (tmp_path / "run").exists()


def test_more_memory_than_there_is(fedkin: Fedkin, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*_: object) -> None:
        raise MemoryError("Unable to allocate 7.11 PiB for an array")

    monkeypatch.setattr("fedkin.runs.config.load", too_much)
    refused(fedkin("run", "local"), r"not enough memory for this: .* \(Unable to allocate 7.11 PiB")


def test_a_client_without_training_data_is_named(fedkin: Fedkin, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    x, y, who = np.random.randn(12, 2), np.arange(12) % 2, np.array(["north", "south"] * 6)
    lost = np.array(["north", "west"])
    np.savez(path, x=x, y=y, client=who, x_test=x[:2], y_test=y[:2], client_test=lost)
    refused(fedkin("run", "local", "--data", path), "client 'west' .* no training data")


def test_a_truncated_and_a_mislabelled_idx_file(fedkin: Fedkin, tmp_path: Path) -> None:
    images, labels = np.zeros((30, 28, 28)), np.arange(30) % 10
    for head in ("train", "t10k"):
        (tmp_path / f"{head}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (tmp_path / f"{head}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    words = ("run", "local", "--data", "mnist", "--path", tmp_path, "--num-clients", 3)
    whole = tmp_path / "train-images-idx3-ubyte"
    whole.write_bytes(idx_bytes(images)[:-1])
    refused(fedkin(*words), "train-images-idx3-ubyte")
    whole.write_bytes(idx_bytes(labels))
    refused(fedkin(*words), "train-images-idx3-ubyte")


def test_a_zip_with_a_broken_image(fedkin: Fedkin, tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.new("L", (8, 8)).save(picture, "png")
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as file:
        for number in range(8):
            file.writestr(f"train/{'ab'[number % 2]}/{number}.png", picture.getvalue())
        file.writestr("train/a/broken.png", picture.getvalue()[:40])
    refused(fedkin("run", "local", "--data", tmp_path / "images.zip"), "broken.png")


def test_a_model_whose_output_does_not_fit_the_labels() -> None:
    with pytest.raises(FedkinError, match=r"outputs of shape \(2,\) but the labels have 3 classes"):
        Problem(nn.Linear(5, 2), blobs())
    with pytest.raises(FedkinError, match=r"the model cannot take inputs of shape \(5,\)"):
        Problem(nn.Linear(4, 3), blobs())


def test_a_run_whose_file_is_no_model(fedkin: Fedkin, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert fedkin("run", "local", *TINY, "--out", run).code == 0
    (run / "models" / file_name(1, "1")).write_text("this is no model")
    said = fedkin("export", run, "--client", 1, "--to", tmp_path / "model.pt2")
    refused(said, "client-0001.safetensors is not a readable safetensors file")


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    problem = Problem(nn.Linear(5, 3), blobs())
    path = tmp_path / file_name(0, "0")
    with pytest.raises(FedkinError, match=f"there is no file {path}"):
        load_model(tmp_path, problem, 0, "0")
    path.write_text("this is no model")
    with pytest.raises(FedkinError, match=f"{path} is not a readable safetensors file"):
        load_model(tmp_path, problem, 0, "0")
    write_tensors(path, {"weight": torch.zeros(3, 5)})
    with pytest.raises(FedkinError, match="is not a client's model: its rate is missing"):
        load_model(tmp_path, problem, 0, "0")
    write_tensors(path, {"weight": torch.zeros(3, 5)}, {"rate": "1.0"})
    with pytest.raises(FedkinError, match="contains another model than"):
        load_model(tmp_path, problem, 0, "0")
