"""Arrays from npz files and from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.data import ClientData, DataConfig, from_arrays, load
from fedkin.errors import FedkinError

X, Y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3


def saved(path: Path, **arrays: Any) -> str:
    np.savez(path / "data.npz", **arrays)
    return str(path / "data.npz")


def read(path: Path, arrays: dict[str, Any], **options: Any) -> ClientData:
    return load(DataConfig(name=saved(path, **arrays), **options), 0)


def test_npz_with_clients_keeps_them(tmp_path: Path) -> None:
    data = read(tmp_path, {"x": X, "y": Y, "client": np.repeat(["b", "a", "c"], 20)})
    assert data.names == ("a", "b", "c")
    assert (data.train.sizes + data.test.sizes).tolist() == [20] * 3


def test_npz_in_keras_layout_of_pixels_is_partitioned(tmp_path: Path) -> None:
    x = np.arange(60 * 4 * 4).reshape(60, 4, 4).astype(np.uint8)
    arrays = {"x_train": x, "y_train": Y, "x_test": x[:30], "y_test": Y[:30]}
    data = read(tmp_path, arrays, num_clients=2)
    assert data.input_shape == (1, 4, 4)
    assert data.train.x.max() <= 1
    assert data.global_test is not None
    assert len(data.global_test[1]) == 30


def test_npz_test_rows_go_to_their_own_clients(tmp_path: Path) -> None:
    arrays = {"x": X, "y": Y, "client": np.arange(60) // 30}
    arrays |= {"x_test": X[:10], "y_test": Y[:10], "client_test": np.array([0] * 3 + [1] * 7)}
    assert read(tmp_path, arrays).test.sizes.tolist() == [3, 7]


def test_colour_pixels_with_channels_last_are_moved_first(tmp_path: Path) -> None:
    x = np.zeros((60, 5, 4, 3), np.uint8)
    assert read(tmp_path, {"x": x, "y": Y}, num_clients=2).input_shape == (3, 5, 4)


def test_float_targets_are_regression_and_integers_classes() -> None:
    numbers = from_arrays([(X, Y.astype(float)), (X, Y.astype(float))])
    assert numbers.num_classes is None
    assert numbers.train.y.dtype == torch.float32
    classes = from_arrays([(X, Y), (X, Y)])
    assert (classes.num_classes, classes.train.y.dtype) == (3, torch.int64)


def test_labels_from_zero_stay_and_others_are_numbered() -> None:
    assert from_arrays([(X, Y * 2), (X, Y * 2)]).train.y.unique().tolist() == [0, 2, 4]
    words = from_arrays([(X, np.array(["x", "a", "b"])[Y])] * 2)
    assert words.class_names == ("a", "b", "x")
    assert words.num_classes == 3


def test_tensors_with_own_test_sets_are_taken_as_they_are() -> None:
    x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(Y)
    data = from_arrays([(x, y), (x[:30], y[:30])], test=[(x[:5], y[:5])] * 2, names=["p", "q"])
    assert data.names == ("p", "q")
    assert torch.equal(data.train.x[:60], x)
    assert data.test.sizes.tolist() == [5, 5]


def test_validation_is_cut_from_the_training_part() -> None:
    data = from_arrays([(X, Y), (X, Y)], test_fraction=0.2, validation_fraction=0.25)
    assert data.validation is not None
    assert [p.sizes.tolist() for p in (data.train, data.validation, data.test)] == [
        [36, 36],
        [12, 12],
        [12, 12],
    ]


def test_a_client_without_training_data_is_named() -> None:
    with pytest.raises(FedkinError, match="client 'lab' has no training data"):
        from_arrays([(X, Y), (X[:0], Y[:0])], names=["home", "lab"])


@pytest.mark.parametrize(
    ("clients", "options", "sentence"),
    [
        ([], {}, "there are no clients"),
        ([(X, Y), (X, Y[:-1])], {}, "client '1' has inputs of shape .* one target per input"),
        ([(X, Y), (X[:, :2], Y)], {}, r"client '1' has samples of shape \(2,\)"),
        ([(X, Y)], {"test": []}, "1 clients but 0 test sets"),
        ([(X, Y)], {"names": ["a", "b"]}, "1 clients but 2 names"),
        ([(X * np.nan, Y)], {}, "missing or infinite in row 0"),
        ([(X, Y * np.nan)], {}, "target that is missing or infinite"),
        ([(X.astype(str), Y)], {}, "give numbers"),
        ([(X, Y)], {"test": [(X, Y + 7)]}, "has class '7', which the training data do not"),
        ([(X, Y)], {"test": [(X[:, :2], Y)]}, "both must be alike"),
        ([(X, Y)], {"test_fraction": 1.5}, "'test_fraction' should be less than 1"),
        ([(X, Y.astype(str))], {"task": "regression"}, "regression needs numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    clients: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(FedkinError, match=sentence):
        from_arrays(clients, **options)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": X, "y": Y[:-1]}, "one target per sample"),
        ({"x": X}, r"has no array 'y' \(it has: x\)"),
        ({"x": X, "y": Y, "client": Y[:5]}, "60 targets but clients of shape"),
        ({"x": X[:0], "y": Y[:0]}, "has no samples"),
        ({"x": X, "y": np.array([{}] * 60, dtype=object)}, "contains pickled Python objects"),
        (
            {"x": X, "y": Y, "client": Y, "x_test": X, "y_test": Y, "client_test": Y + 1},
            "client '3' .* has test but no training data",
        ),
    ],
)
def test_npz_files_that_do_not_fit_are_refused(
    tmp_path: Path, arrays: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(FedkinError, match=sentence):
        read(tmp_path, arrays)


@pytest.mark.parametrize("content", [b"", b"no npz", b"PK\x03\x04 broken"])
def test_a_file_that_is_no_npz_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(FedkinError, match="is no npz file or is damaged"):
        load(DataConfig(name=str(tmp_path / "data.npz")), 0)


def test_a_single_array_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", X)
    (tmp_path / "data.npy").rename(tmp_path / "data.npz")
    with pytest.raises(FedkinError, match="holds a single array"):
        load(DataConfig(name=str(tmp_path / "data.npz")), 0)
