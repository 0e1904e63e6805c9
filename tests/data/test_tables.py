"""Tables: numbers, categories, missing values; everything learnt is learnt from training rows."""

from __future__ import annotations

import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedkin.data import ClientData, DataConfig, load
from fedkin.errors import FedkinError


def patients(rows: int = 90) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "site": np.array(["north", "south", "west"])[np.arange(rows) % 3],
            "age": rng.normal(50, 12, rows).round(1),
            "smoker": rng.random(rows) < 0.3,
            "ward": rng.choice(["a", "b", "c"], rows),
            "ill": rng.integers(0, 2, rows),
        }
    )


def read(frame: pd.DataFrame, folder: Path, kind: str = "csv", **options: Any) -> ClientData:
    path = folder / f"patients.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    columns = {"client_column": "site", "target_column": "ill"}
    return load(DataConfig(name=str(path), **(columns | options)), 0)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_each_site_becomes_a_client_with_encoded_features(tmp_path: Path, kind: str) -> None:
    data = read(patients(), tmp_path, kind)
    assert data.names == ("north", "south", "west")
    assert data.input_shape == (5,)  # age, smoker, three wards
    assert (data.num_classes, data.train.y.dtype) == (2, torch.int64)
    assert set(data.train.x[:, 2:].unique().tolist()) == {0.0, 1.0}
    assert (data.train.x[:, 2:].sum(1) == 1).all()
    assert data.notes == ()


def test_csv_and_parquet_give_the_same_bits(tmp_path: Path) -> None:
    a, b = (read(patients(), tmp_path, kind) for kind in ("csv", "parquet"))
    assert torch.equal(a.train.x, b.train.x)


def test_scaling_is_fitted_on_training_rows_only(tmp_path: Path) -> None:
    data = read(patients(), tmp_path)
    assert data.train.x[:, 0].mean() == pytest.approx(0, abs=1e-5)
    assert data.train.x[:, 0].std(correction=0) == pytest.approx(1, abs=1e-5)
    assert abs(float(data.test.x[:, 0].mean())) > 1e-3
    raw = read(patients(), tmp_path, standardise=False)
    assert raw.train.x[:, 0].mean() == pytest.approx(50, abs=5)


def test_missing_values_take_training_statistics_and_are_reported(tmp_path: Path) -> None:
    frame = patients()
    complete = read(frame, tmp_path, standardise=False)
    # Which rows are trained on depends on targets and clients alone.
    test_ages = set(complete.test.x[:, 0].tolist())
    in_test = frame.age.astype(np.float32).isin(test_ages)
    frame.loc[in_test[in_test].index[:3], "age"] = np.nan
    frame.loc[[1, 2], "ward"] = None
    data = read(frame, tmp_path, standardise=False)
    median = float(complete.train.x[:, 0].median())
    values = np.median(complete.train.x[:, 0].numpy())
    assert np.isclose(data.test.x[:, 0].numpy(), values).sum() >= 3
    assert abs(values - median) < 2
    assert "column 'age': 3 missing values became the training median" in data.notes
    assert any("column 'ward': 2 missing values became the commonest" in n for n in data.notes)


def test_categories_unknown_to_training_are_no_value_and_reported(tmp_path: Path) -> None:
    frame = patients()
    ages = set(read(frame, tmp_path, standardise=False).test.x[:, 0].tolist())
    row = frame.age.astype(np.float32).isin(ages).idxmax()
    frame.loc[row, "ward"] = "unheard of"
    data = read(frame, tmp_path)
    assert data.input_shape == (5,)
    assert (data.test.x[:, 2:].sum(1) == 0).sum() == 1
    assert "1 values do not occur in training" in data.notes[0]


def test_identifiers_and_empty_columns_are_left_out_and_reported(tmp_path: Path) -> None:
    frame = patients(600).assign(name=[f"patient {i}" for i in range(600)], nothing=np.nan)
    data = read(frame, tmp_path)
    assert data.input_shape == (5,)
    assert "looks like an identifier" in data.notes[0]
    assert "no values in the training data" in data.notes[1]


def test_numeric_targets_of_many_values_are_regression(tmp_path: Path) -> None:
    data = read(patients(), tmp_path, target_column="age")
    assert (data.num_classes, data.train.y.dtype) == (None, torch.float32)
    assert data.train.y.mean() == pytest.approx(0, abs=1e-6)
    assert data.preparation.target is not None
    assert data.preparation.target[0] == pytest.approx(50, abs=5)
    assert read(
        patients(), tmp_path, target_column="age", standardise_target=False
    ).train.y.mean() == pytest.approx(50, abs=5)


def test_word_targets_become_classes_by_name(tmp_path: Path) -> None:
    data = read(patients(), tmp_path, target_column="ward")
    assert data.class_names == ("a", "b", "c")


def test_dates_decimals_and_nullable_numbers_count_as_numbers(tmp_path: Path) -> None:
    frame = patients().assign(
        day=pd.date_range("2020-01-01", periods=90),
        price=[Decimal(i) / 3 for i in range(90)],
        visits=pd.array([None, 1, 2] * 30, dtype="Int64"),
    )
    frame.loc[3, "day"] = pd.NaT
    data = read(frame, tmp_path, "parquet")
    # the date gives five inputs; visits are missing at one site alone, which gives one more
    assert data.input_shape == (13,)
    assert torch.isfinite(data.train.x).all()


def test_usual_column_names_need_not_be_said(tmp_path: Path) -> None:
    frame = patients().rename(columns={"site": "client", "ill": "label"})
    data = read(frame, tmp_path, client_column=None, target_column=None)
    assert data.num_clients == 3


def test_a_table_without_clients_can_be_partitioned(tmp_path: Path) -> None:
    frame = patients().drop(columns="site")
    options = {"client_column": None, "num_clients": 5, "partition": "iid"}
    assert read(frame, tmp_path, **options).num_clients == 5


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (lambda f: f.assign(ill=f.ill.where(f.index != 4)), {}, r"'ill' of .* 1 rows .*row 5"),
        (lambda f: f.assign(ill=1), {}, "target 'ill' of .* is always 1"),
        (lambda f: f.assign(site="north"), {}, "single client 'north' in column 'site'"),
        (lambda f: f.drop(columns="site"), {}, "unknown client column 'site'"),
        (lambda f: f, {"client_column": "sites"}, r"'sites' \(did you mean 'site'\?\) in table"),
        (lambda f: f, {"client_column": None}, "has no column named client"),
        (lambda f: f, {"target_column": None}, "no column named target, label or y"),
        (lambda f: f, {"target_column": "il"}, r"unknown target column 'il' \(did you mean 'ill'"),
        (lambda f: f, {"target_column": "site"}, "cannot be both client and target"),
        (lambda f: f[["site", "ill"]], {}, "has no feature columns"),
        (lambda f: f.iloc[:0], {}, "has no rows"),
        (lambda f: f.assign(site=f.site.where(f.index != 7)), {}, "row 8 of .* has no client"),
        (lambda f: f.assign(ill=np.inf), {}, "missing or infinite in 90 rows"),
        (lambda f: f, {"target_column": "ward", "task": "regression"}, "is not a number"),
        (lambda f: f.assign(age=f.index * 1e40), {}, "column 'age' of .* too large"),
        (lambda f: f.assign(ill=f.index * 1e40), {}, "beyond 1e30"),
        (lambda f: f[["site", "ill"]].assign(gap=np.nan), {}, "no usable feature columns"),
        (lambda f: f, {"partition": "classes", "classes_per_client": 3}, "data have 2 classes"),
    ],
)
def test_tables_one_cannot_learn_from_are_refused(
    tmp_path: Path, change: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(FedkinError, match=sentence) as error:
        read(change(patients()), tmp_path, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "content"),
    [("csv", b""), ("csv", b'a,b\n"unclosed'), ("csv", b"\xff\xfe\x00"), ("parquet", b"PAR1 no")],
)
def test_files_that_are_no_tables_are_refused(tmp_path: Path, kind: str, content: bytes) -> None:
    path = tmp_path / f"broken.{kind}"
    path.write_bytes(content)
    with pytest.raises(FedkinError, match="cannot be read as"):
        load(DataConfig(name=str(path), target_column="a", client_column="b"), 0)
    with pytest.raises(FedkinError, match="there is no file or folder"):
        load(DataConfig(name=f"nowhere.{kind}"), 0)
    with pytest.raises(FedkinError, match="set path"):
        load(DataConfig(name=kind), 0)


CELLS = st.one_of(
    st.sampled_from(
        ["", "nan", "inf", "-inf", "1e308", "1e999", "9" * 30, "True", "0x1", "é", "\0"]
    ),
    st.text(max_size=5),
    st.integers(-10, 10).map(str),
    st.floats().map(str),
)


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whatever_happens_to_a_table_only_our_own_error_comes_out(
    tmp_path: Path, data: st.DataObject
) -> None:
    """Cells, separators and bytes of a good table are overwritten at random."""
    buffer = io.StringIO()
    patients(12).to_csv(buffer, index=False)
    lines = [line.split(",") for line in buffer.getvalue().splitlines()]
    for _ in range(data.draw(st.integers(0, 6))):
        row = data.draw(st.integers(0, len(lines) - 1))
        column = data.draw(st.integers(0, len(lines[row]) - 1))
        lines[row][column] = data.draw(CELLS)
    content = "\n".join(",".join(line) for line in lines).encode("utf-8", "surrogatepass")
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(content)))
        content = content[:at] + data.draw(st.binary(max_size=4)) + content[at + 2 :]
    path = tmp_path / "mutated.csv"
    path.write_bytes(content)
    options: dict[str, Any] = data.draw(
        st.fixed_dictionaries(
            {
                "client_column": st.sampled_from(["site", "ward", "age", None]),
                "target_column": st.sampled_from(["ill", "age", "ward", None]),
                "task": st.sampled_from(["auto", "classification", "regression"]),
                "partition": st.sampled_from([None, "iid", "dirichlet", "classes", "shards"]),
                "standardise": st.sampled_from([None, False]),
                "num_clients": st.sampled_from([None, 3, 50]),
            }
        )
    )
    try:
        clients = load(DataConfig(name="csv", path=str(path), **options), 0)
    except FedkinError:
        return
    assert torch.isfinite(clients.train.x).all()
    assert torch.isfinite(clients.test.x).all()


def test_clients_names_are_as_written(tmp_path: Path) -> None:
    """01, 1, 1.0 and 1e0 are four clients; plain numbers come in the order of numbers."""
    lines = [f"{name},{i},{i % 2}" for i in range(10) for name in ("01", "1", "1.0", "1e0")]
    (path := tmp_path / "codes.csv").write_text("\n".join(["site,x,y", *lines]))
    keys = {"client_column": "site", "target_column": "y", "features": ("x",)}
    assert load(DataConfig(name=str(path), **keys), 0).names == ("01", "1", "1.0", "1e0")
    lines = [f"{name},{i},{i % 2}" for i in range(10) for name in (10, 9, -2, 100)]
    path.write_text("\n".join(["site,x,y", *lines]))
    data = load(DataConfig(name=str(path), **keys), 0)
    assert data.names == ("-2", "9", "10", "100")
    frame = pd.DataFrame({"site": [9, 9, 10, 10] * 5, "x": [5.0, 5.0, 7.0, 7.0] * 5})
    frame.assign(y=[0, 1] * 10).to_csv(path, index=False)
    data = load(DataConfig(name=str(path), **keys, standardise=False), 0)
    assert data.names == ("9", "10")
    assert set(data.train[0][0].flatten().tolist()) == {5.0}
