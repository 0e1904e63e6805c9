"""What was learnt from training data is repeated on new data, to the bit, also after json."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from fedkin.data.build import build
from fedkin.data.config import DataConfig
from fedkin.data.pool import Pool
from fedkin.data.preparation import Preparation, learn_columns
from fedkin.errors import FedkinError


def again(preparation: Preparation) -> Preparation:
    return Preparation.from_facts(json.loads(json.dumps(preparation.facts())))


def test_columns_are_encoded_by_the_training_rows_alone() -> None:
    frame = pd.DataFrame({"size": [1.0, 3.0, np.nan, 99.0], "kind": ["a", "b", "a", "c"]})
    columns, notes = learn_columns(frame, np.array([0, 1, 2]), standardise=True)
    x = again(Preparation(columns)).inputs(frame)
    # sizes 1, 3, (median 2): mean 2, deviation sqrt(2/3); kinds a, b: c never occurred
    scale = np.sqrt(2 / 3)
    np.testing.assert_allclose(x[:, 0], np.array([-1, 1, 0, 97]) / scale, rtol=1e-6)
    assert x[:, 1:].tolist() == [[1, 0], [0, 1], [1, 0], [0, 0]]
    assert len(notes) == 2


def test_a_missing_category_becomes_the_commonest_of_training() -> None:
    frame = pd.DataFrame({"kind": ["b", "b", "a", None]})
    columns, _ = learn_columns(frame, np.arange(3), standardise=True)
    assert again(Preparation(columns)).inputs(frame)[3].tolist() == [0, 1]


@pytest.mark.parametrize("pixels", [False, True])
def test_arrays_are_scaled_as_the_clients_data_were(pixels: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 3)).astype(np.uint8 if pixels else np.float64)
    pool = Pool(x, np.arange(40) % 2, 2, clients=np.arange(40) % 4, client_names=tuple("abcd"))
    config = DataConfig(name="npz", partition="column", standardise=True, unit_norm=True)
    data = build(pool, config.resolved(), seed=0)
    raw = again(data.preparation).inputs(x)
    known = {row.tobytes() for row in raw}
    assert all(row.tobytes() in known for row in data.train.x.numpy())
    np.testing.assert_allclose(np.linalg.norm(raw, axis=1), 1, rtol=1e-5)


def test_a_missing_column_is_named() -> None:
    columns, _ = learn_columns(pd.DataFrame({"size": [1.0, 2.0]}), np.arange(2), standardise=True)
    with pytest.raises(FedkinError, match="no column 'size'"):
        Preparation(columns).inputs(pd.DataFrame({"other": [1.0]}))
