"""Tables, numbers, pictures and checksums of clients' data."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedkin.data import DataConfig, checksum, describe, from_arrays, load, plot, summary
from fedkin.errors import FedkinError

X = np.zeros((40, 2), np.float32)


def test_describe_tells_sizes_classes_and_skew() -> None:
    data = from_arrays([(X, np.zeros(40, int)), (X, np.ones(40, int))], names=["a", "b"])
    table = describe(data)
    assert table.index.tolist() == ["a", "b"]
    assert table.train.tolist() == [30, 30]
    assert table.classes.tolist() == [1, 1]
    assert table.top_class.tolist() == ["0", "1"]
    assert table["skew"].tolist() == [0.5, 0.5]


def test_even_clients_have_no_skew() -> None:
    data = from_arrays([(X, np.arange(40) % 2)] * 3)
    assert describe(data)["skew"].max() == pytest.approx(0, abs=0.02)
    numbers = summary(data)
    assert (numbers["clients"], numbers["train"], numbers["classes_per_client"]) == (3, 90, 2)


def test_regression_and_groups_are_described() -> None:
    assert "target_mean" in describe(load(DataConfig(name="linear"), 0))
    assert "group" in describe(load(DataConfig(name="rotated-digits", validation_fraction=0.1), 0))
    assert summary(load(DataConfig(name="linear"), 0))["smallest"] == 75


@pytest.mark.parametrize("name", ["rotated-digits", "linear"])
def test_plot_writes_a_picture(tmp_path: Path, name: str) -> None:
    plot(load(DataConfig(name=name), 0), tmp_path / "classes.png")
    with Image.open(tmp_path / "classes.png") as picture:
        assert picture.width > 300


def test_plot_of_500_clients_and_100_classes_is_quick(tmp_path: Path) -> None:
    parts = [(X, np.arange(40) * 7 % 100) for _ in range(500)]
    data = from_arrays(parts)
    start = time.process_time()
    plot(data, tmp_path / "classes.png")
    assert time.process_time() - start < 5


@pytest.mark.parametrize("file", ["classes.nothing", "no/such/folder/classes.png"])
def test_a_picture_that_cannot_be_written_is_said(tmp_path: Path, file: str) -> None:
    with pytest.raises(FedkinError, match="cannot be written"):
        plot(load(DataConfig(name="linear"), 0), tmp_path / file)


def test_checksum_is_stable_and_notices_one_changed_number() -> None:
    data = from_arrays([(X, np.arange(40) % 2)] * 2)
    before = checksum(data)
    assert len(before) == 64
    assert before == checksum(from_arrays([(X, np.arange(40) % 2)] * 2))
    data.train.x[3, 1] += 1
    assert checksum(data) != before


def test_checksum_of_a_given_seed_never_changes() -> None:
    # Were this to change, recorded runs could not be repeated.
    expected = "19157030064c1c16df9b26b8774ba82875321b88d0fb5204c724238356183a7d"
    assert checksum(load(DataConfig(name="rotated-digits"), 0)) == expected
