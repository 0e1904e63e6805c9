"""A site's own file is read by what all sites agreed on, not by what happens to be in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedkin.data.clients import ClientData
from fedkin.data.site import Agreement, load_site
from fedkin.errors import FedkinError

AGREED = Agreement(
    features=["age", "sex"], categories={"sex": ["f", "m", "x"]}, classes=["no", "yes"]
)


def table(path: Path, **columns: list[Any]) -> Path:
    frame = pd.DataFrame(
        {"age": [20.0, 30, 40, 50], "sex": ["f", "f", "m", "f"], "target": ["no", "yes"] * 2}
        | columns
    )
    frame.to_csv(path / "my.csv", index=False)
    return path / "my.csv"


def load(path: Path, agreed: Agreement = AGREED, **shared: Any) -> ClientData:
    return load_site(path, "here", {"test_fraction": 0.0, **shared}, agreed, seed=0)


def test_one_client_with_the_agreed_columns(tmp_path: Path):
    data = load(table(tmp_path, other=["left", "out", "of", "it"]))
    assert data.names == ("here",)
    assert data.num_classes == 2
    assert data.train.y.tolist() == [0, 1, 0, 1]
    age = np.array([20, 30, 40, 50.0])
    np.testing.assert_allclose(data.train.x[:, 0], (age - 35) / age.std(), rtol=1e-6)
    assert data.train.x[:, 1:].tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]]


def test_stated_scales_are_the_same_at_every_site(tmp_path: Path):
    agreed = AGREED.model_copy(update={"scale": {"age": (50.0, 10.0)}})
    data = load(table(tmp_path), agreed)
    assert data.train.x[:, 0].tolist() == [-3, -2, -1, 0]


def test_missing_values_are_filled_from_the_sites_own_training_data(tmp_path: Path):
    path = table(tmp_path, age=[20, None, 40, 90], sex=["m", None, "m", "strange"])
    data = load(path, standardise=False)
    assert data.train.x[:, 0].tolist() == [20, 40, 40, 90]
    assert data.train.x[1, 1:].tolist() == [0, 1, 0]
    assert data.train.x[3, 1:].tolist() == [0, 0, 0]  # no category that was agreed on


def test_a_site_that_lacks_a_class_has_the_same_numbers_for_the_others(tmp_path: Path):
    data = load(table(tmp_path, target=["yes"] * 4))
    assert data.train.y.tolist() == [1] * 4
    assert data.num_classes == 2


def test_arrays_keep_their_labels(tmp_path: Path):
    np.savez(tmp_path / "my.npz", x=np.ones((4, 2, 3)), y=np.array([2, 3, 3, 2]))
    data = load(tmp_path / "my.npz", Agreement(classes=5))
    assert data.train.y.tolist() == [2, 3, 3, 2]
    assert (data.num_classes, data.input_shape) == (5, (2, 3))


def test_an_arrays_own_test_part_is_used(tmp_path: Path):
    x, y = np.arange(8.0).reshape(4, 2), np.array([0.5, 1, 2, 3])
    np.savez(tmp_path / "my.npz", x=x, y=y, x_test=x[:1], y_test=y[:1])
    data = load(tmp_path / "my.npz", Agreement())
    assert data.num_classes is None
    assert data.train.sizes.tolist() == [4]
    mean, deviation = data.preparation.target
    assert (mean, deviation) == pytest.approx((y.mean(), y.std()))
    assert (data.test.y * deviation + mean).tolist() == pytest.approx([0.5])


@pytest.mark.parametrize(
    ("columns", "agreed", "words"),
    [
        ({"target": ["no", "maybe"] * 2}, AGREED, "unknown class 'maybe'"),
        ({"target": ["no", None] * 2}, AGREED, "missing in row 2"),
        ({"age": ["old"] * 4}, AGREED, "column 'age' has words"),
        ({}, Agreement(features=["age"]), "is not a number: list the classes"),
        ({}, Agreement(classes=2), "names no features"),
        ({}, Agreement(features=["agee"], classes=2), "did you mean 'age'"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    tmp_path: Path, columns: dict[str, list[Any]], agreed: Agreement, words: str
):
    with pytest.raises(FedkinError, match=words):
        load(table(tmp_path, **columns), agreed)


def test_other_files_are_refused(tmp_path: Path):
    with pytest.raises(FedkinError, match=r"csv, \.parquet or \.npz file"):
        load(tmp_path / "my.zip")
