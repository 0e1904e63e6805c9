"""A finished run's models, used without fedkin's training and without its data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from safetensors import safe_open
from torch import nn
from typer.testing import CliRunner

import fedkin
from fedkin.command import runs as commands
from fedkin.command.cli import app
from fedkin.core.problem import Problem
from fedkin.errors import FedkinError
from fedkin.methods import Submodel
from fedkin.models import build
from fedkin.reports.export import export, predict, read_samples
from fedkin.runs import models
from fedkin.runs.config import make_config, read_config
from fedkin.runs.stored import StoredRun, open_run
from tests.helpers import blobs, least_squares


def patients(rows: int = 120) -> pd.DataFrame:
    """Numbers with gaps, words with gaps, words that look like numbers, and a word to predict."""
    rng = np.random.default_rng(1)
    age = rng.normal(50, 10, rows).round(1)
    ward = rng.choice(["a", "b", "1"], rows)
    frame = pd.DataFrame({
        "site": rng.choice(["north", "south", "7"], rows), "age": age, "ward": ward,
        "dose": rng.integers(0, 5, rows) * 10.0, "outcome": np.where(age > 50, "ill", "well"),
    })  # fmt: skip
    frame.loc[::7, "age"] = np.nan
    frame.loc[3::11, "ward"] = None
    return frame


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "patients.csv"
    patients().to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(table: Path) -> StoredRun:
    """A finished run on the table."""
    values = {
        "method": "fedavg", "rounds": 3, "baseline": False, "strategy": "stacked",
        "data": {"name": str(table), "client_column": "site", "target_column": "outcome",
                 "validation_fraction": 0.2},
        "model": {"name": "mlp:4"},
    }  # fmt: skip
    config = make_config(values)
    commands.begin(config, config.make_data(), table.parent / "run").run()
    return open_run(table.parent / "run")


def test_new_data_are_made_ready_just_as_training_data_were(run: StoredRun, table: Path) -> None:
    data = read_config(run.path / "config.toml").make_data()
    parts = (data.train, data.validation, data.test)
    trained = np.concatenate([part.x.numpy() for part in parts if part is not None])
    again = read_samples(run.inputs, table)
    order = [np.lexsort(values.T) for values in (trained, again)]
    np.testing.assert_array_equal(trained[order[0]], again[order[1]])


def test_predictions_are_those_of_the_clients_own_model(run: StoredRun, table: Path) -> None:
    found = predict(run, run.personal.number("north"), table)
    with torch.no_grad():
        x = torch.from_numpy(read_samples(run.inputs, table))
        shares = run.personal["north"](x).softmax(1)
    names = [("ill", "well")[i] for i in shares.argmax(1).tolist()]
    assert found["prediction"].tolist() == names
    assert found["probability"].tolist() == pytest.approx(shares.amax(1).tolist())


def test_categories_that_look_like_numbers_stay_words(run: StoredRun, tmp_path: Path) -> None:
    new = pd.DataFrame({"age": [50.0], "ward": [1], "dose": [10]})
    new.to_csv(tmp_path / "new.csv", index=False)
    new.assign(ward="1").to_parquet(tmp_path / "new.parquet")
    for name in ("new.csv", "new.parquet"):
        x = read_samples(run.inputs, tmp_path / name)
        names = [c.name for c in run.inputs.preparation.columns or ()]
        assert names == ["age", "ward", "dose"]
        assert x[0, 1:4].tolist() == [1, 0, 0]  # the wards are 1, a, b


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("age,ward\n50,a\n", "no column 'dose'"),
        ("age,ward,dose\nold,a,10\n", "column 'age' of .* has words"),
        ("age,ward,dose\n", "has no rows"),
        ("age,ward,dose\n1e300,a,10\n", "too large"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    run: StoredRun, tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(FedkinError, match=sentence):
        predict(run, 0, tmp_path / "new.csv")


def test_exported_files_compute_what_the_model_does(run: StoredRun, tmp_path: Path) -> None:
    module = run.personal["south"].eval()
    x = torch.randn(5, 5)
    expected = module(x).detach()
    path = export(run, run.personal.number("south"), str(tmp_path / "model.safetensors"))
    with safe_open(path, framework="pt") as file:
        named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = json.loads(file.metadata()["inputs"])
    other = build("mlp:4", (5,), 2, seed=9)
    other.load_state_dict(named)
    torch.testing.assert_close(other(x).detach(), expected)
    assert about["class_names"] == ["ill", "well"]
    south = run.personal.number("south")
    program = torch.export.load(export(run, south, str(tmp_path / "model.pt2")))
    torch.testing.assert_close(program.module()(x).detach(), expected)


def test_onnx_takes_raw_values_and_gives_names_and_probabilities(
    run: StoredRun, table: Path, tmp_path: Path
) -> None:
    south = run.personal.number("south")
    path = export(run, south, str(tmp_path / "model.onnx"))
    onnx.checker.check_model(str(path))
    facts = json.loads({p.key: p.value for p in onnx.load(path).metadata_props}["fedkin"])
    assert facts["classes"] == ["ill", "well"]
    raw, columns = patients(), []
    for column in facts["columns"]:
        values = raw[column["name"]]
        if column["kind"] == "category":
            places = {value: float(i) for i, value in enumerate(column["values"])}
            values = values.map(places).where(values.notna(), np.nan)
        columns.append(values.to_numpy(np.float64))
    inputs = np.stack(columns, 1)
    label, shares = ReferenceEvaluator(str(path)).run(None, {"inputs": inputs})
    expected = predict(run, south, table)
    assert [facts["classes"][i] for i in label] == expected["prediction"].tolist()
    np.testing.assert_allclose(shares[:, 0], expected["probability of ill"], atol=1e-5)


def test_onnx_without_its_extra_is_one_sentence(
    run: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedkin.reports.export.find_spec", lambda _: None)
    with pytest.raises(FedkinError, match=r"fedkin\[onnx\]"):
        export(run, 0, str(tmp_path / "model.onnx"))


def test_mistakes_are_answered_with_the_nearest(run: StoredRun, tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match="did you mean 'onnx'"):
        export(run, 0, str(tmp_path / "model.onx"))
    with pytest.raises(FedkinError, match="nearest name is 'north'"):
        run.personal["nort"]
    with pytest.raises(FedkinError, match="places are 0 to 2"):
        export(run, 3, str(tmp_path / "model.pt2"))
    with pytest.raises(FedkinError, match="there is no folder"):
        export(run, 0, str(tmp_path / "nowhere" / "model.pt2"))
    with pytest.raises(FedkinError, match="not a run folder"):
        open_run(tmp_path)


def test_the_commands_do_the_same(run: StoredRun, table: Path, tmp_path: Path) -> None:
    command = CliRunner()
    target = tmp_path / "model.safetensors"
    done = command.invoke(app, ["export", str(run.path), "--client", "7", "--to", str(target)])
    assert done.exit_code == 0
    assert target.exists()
    done = command.invoke(app, ["predict", str(run.path), str(table), "--client", "7"])
    assert done.exit_code == 0
    titles = "row,prediction,probability,probability of ill,probability of well"
    assert done.stdout.splitlines()[0] == titles
    assert len(done.stdout.splitlines()) == 121
    out = tmp_path / "found.csv"
    words = ["predict", str(run.path), str(table), "--client", "7", "--out", str(out)]
    assert command.invoke(app, words).exit_code == 0
    assert out.read_text() == done.stdout


def test_a_folder_gives_what_the_run_gave(tmp_path: Path) -> None:
    problem = Problem(build("mlp:8", (5,), 3), blobs(), dtype=torch.float64)
    method = Submodel(rates=(1.0, 0.25), lr=0.1)
    live = fedkin.train(problem, method, folder=tmp_path / "a", rounds=2, strategy="stacked")
    stored = fedkin.open_run(tmp_path / "a", build("mlp:8", (5,), 3, seed=4))
    assert stored.accuracy == live.accuracy
    pd.testing.assert_frame_equal(stored.clients, live.clients)
    assert len(stored.personal) == 6
    x = problem.data.test[0][0].double()
    for client in range(6):
        assert type(stored.personal[client]) is nn.Sequential
        # asked for alone, a client's steps at home round differently than beside others
        torch.testing.assert_close(stored.personal[client](x), live.personal[client](x))
    assert stored.mixing is None
    with pytest.raises(FedkinError, match=r"open_run\(path, module\)"):
        fedkin.open_run(tmp_path / "a").personal  # noqa: B018


def test_weights_between_clients_come_back(tmp_path: Path) -> None:
    problem = Problem(build("logistic", (5,), 3), blobs())
    live = fedkin.train(problem, "perm", folder=tmp_path / "a", rounds=12, strategy="stacked")
    assert live.mixing is not None
    stored = fedkin.open_run(tmp_path / "a").mixing
    assert stored is not None
    torch.testing.assert_close(stored, live.mixing.double())


def test_many_models_in_one_file_are_opened_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "MANY", 3)
    problem = least_squares(clients=6)
    live = fedkin.train(problem, "local", folder=tmp_path / "a", rounds=2, strategy="stacked")
    stored = fedkin.open_run(tmp_path / "a", problem.spec.module)
    x = problem.train.x[:3]
    assert stored.personal[5](x).equal(live.personal[5](x))


def test_numbers_are_predicted_for_regression_from_plain_columns(tmp_path: Path) -> None:
    problem = least_squares(dimension=2)
    fedkin.train(problem, "local", folder=tmp_path / "a", rounds=2, strategy="stacked")
    stored = fedkin.open_run(tmp_path / "a", problem.spec.module)
    x = torch.tensor([[0.5, -1.0], [2.0, 3.0]], dtype=torch.float64)
    expected = stored.personal[1](x).flatten().tolist()
    (tmp_path / "named.csv").write_text("p,q\n0.5,-1.0\n2,3\n")
    (tmp_path / "bare.csv").write_text("0.5,-1.0\n2,3\n")
    np.savez(tmp_path / "x.npz", x=x.numpy())
    for name in ("named.csv", "bare.csv", "x.npz"):
        assert predict(stored, 1, tmp_path / name)["prediction"].tolist() == expected
    (tmp_path / "wide.csv").write_text("1,2,3\n")
    with pytest.raises(FedkinError, match="samples of 3 numbers"):
        predict(stored, 1, tmp_path / "wide.csv")


def test_a_run_that_is_not_finished_has_no_models_yet(tmp_path: Path) -> None:
    config = make_config({"method": "local", "rounds": 5, "model": {"name": "linear"}})
    commands.begin(config, config.make_data(), tmp_path / "a").step()
    with pytest.raises(FedkinError, match="fedkin resume"):
        open_run(tmp_path / "a").personal  # noqa: B018
