"""Hugging Face data sets, with a stand-in for the package and the network."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedkin.data import DataConfig, load
from fedkin.errors import FedkinError


class Image:
    pass


class Part(dict[str, Any]):
    """A split: columns by name, with their features."""

    def __init__(self, columns: dict[str, Any], **features: Any) -> None:
        super().__init__(columns)
        self.features = {name: features.get(name) for name in columns}

    def to_pandas(self) -> pd.DataFrame:
        return pd.DataFrame(dict(self))


def offer(monkeypatch: pytest.MonkeyPatch, splits: Any) -> None:
    def load_dataset(name: str, subset: str | None) -> Any:
        if isinstance(splits, Exception):
            raise splits
        return splits

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))


def pictures(count: int) -> Part:
    images = [np.full((4, 4), i % 250, np.uint8) for i in range(count)]
    labels = SimpleNamespace(names=["no", "yes"])
    columns = {"image": images, "label": np.arange(count) % 2, "writer": np.arange(count) // 10}
    return Part(columns, image=Image(), label=labels)


def test_images_with_an_official_test_split(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, {"train": pictures(40), "test": pictures(20)})
    data = load(DataConfig(name="hf", path="some/pictures", num_clients=2), 0)
    assert data.input_shape == (1, 4, 4)
    assert data.class_names == ("no", "yes")
    assert data.global_test is not None


def test_images_by_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, {"train": pictures(40)})
    data = load(DataConfig(name="hf", path="some/pictures", client_column="writer"), 0)
    assert data.num_clients == 4
    with pytest.raises(FedkinError, match=r"unknown client column 'writers' \(did you mean"):
        load(DataConfig(name="hf", path="some/pictures", client_column="writers"), 0)


def test_a_table_is_read_like_any_table(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"a": np.arange(40.0), "client": np.arange(40) % 4, "label": np.arange(40) % 3}
    offer(monkeypatch, {"train": Part(columns), "test": Part(columns)})
    data = load(DataConfig(name="hf", path="some/table"), 0)
    assert (data.train.sizes + data.test.sizes).tolist() == [20] * 4


def test_without_the_package_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FedkinError, match=r"pip install 'fedkin\[hf\]'"):
        load(DataConfig(name="hf", path="some/table"), 0)


def test_what_the_hub_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, RuntimeError("no such data set\nand a long story"))
    with pytest.raises(FedkinError, match=r"could not be read from the hub \(no such data set\)"):
        load(DataConfig(name="hf", path="some/table"), 0)
    with pytest.raises(FedkinError, match="set path"):
        load(DataConfig(name="hf"), 0)
