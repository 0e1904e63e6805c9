"""Arrays: npz files, and arrays from Python."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedkin.data.build import build
from fedkin.data.clients import ClientData
from fedkin.data.config import DataConfig, Task
from fedkin.data.partition import Array
from fedkin.data.places import given
from fedkin.data.pool import Pool, encode_labels, finite, pixels
from fedkin.errors import FedkinError


def read_npz(config: DataConfig, rng: np.random.Generator) -> Pool:
    """An npz file with x, y (or x_train, y_train) and, where known, client, x_test, y_test.

    x of type uint8 is pixels; y of a floating type is for regression. `client` names each
    row's client and `client_test` each test row's; without `client` samples are partitioned.
    """
    if config.path is None:
        raise FedkinError("data 'npz' need a file: set path")
    arrays = read_arrays(config.path)
    x, y = (_array(arrays, config.path, key) for key in ("x", "y"))
    where = f"'{config.path}'"
    pool = _pool(x, y, config.task, where)
    if "client" in arrays:
        names, pool.clients = _client_numbers(arrays["client"], len(y), where)
        pool.client_names = names
    if "x_test" not in arrays:
        return pool
    x_test, y_test = (_array(arrays, config.path, key) for key in ("x_test", "y_test"))
    pool.test = _like(pool, y, x_test, y_test, f"the test part of {where}")
    if "client_test" in arrays and pool.clients is not None:
        index = {name: i for i, name in enumerate(pool.client_names)}
        owners = arrays["client_test"]
        if len(owners) != len(y_test):
            raise FedkinError(f"{where} has {len(y_test)} test targets but {len(owners)} clients")
        pool.test_clients = np.array([index.get(str(c), -1) for c in owners], dtype=np.int64)
        lost = next((c for c in owners if str(c) not in index), None)
        if lost is not None:
            raise FedkinError(f"client '{lost}' in {where} has test but no training data")
    return pool


def from_arrays(
    clients: Sequence[tuple[Any, Any]],
    *,
    test: Sequence[tuple[Any, Any]] | None = None,
    test_fraction: float = 0.25,
    validation_fraction: float = 0.0,
    names: Sequence[str] | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
    task: Task = "auto",
    standardise_target: bool = False,
    seed: int = 0,
) -> ClientData:
    """Clients from one (x, y) pair of arrays or tensors each.

    Without `test` (pairs in the same order) a share of each client's samples becomes its
    test set. `columns` are facts about clients, such as the rate that `capacity` names. x of
    type uint8 is pixels. Unless `task` says otherwise, targets of a floating type are for
    regression and others are classes; labels that start at 0 stay as they are. With
    `standardise_target` models are trained on targets of mean 0 and deviation 1, which is undone
    in every number shown; modules answer in that scale.
    """
    if not clients:
        raise FedkinError("there are no clients: give at least one (x, y) pair")
    titles = tuple(str(n) for n in names) if names is not None else _numbers(len(clients))
    facts = {name: list(column) for name, column in (columns or {}).items()}
    known = [(f"values of '{name}'", column) for name, column in facts.items()]
    for what, given_ in (("test sets", test), ("names", names), *known):
        if given_ is not None and len(given_) != len(clients):
            raise FedkinError(f"{len(clients)} clients but {len(given_)} {what}; give one each")
    x, y, owners = _joined(clients, titles)
    pool = _pool(x, y, task, "the data")
    pool.clients, pool.client_names = owners, titles
    if test is not None:
        x_test, y_test, pool.test_clients = _joined(test, titles)
        pool.test = _like(pool, y, x_test, y_test, "the test data")
    config = DataConfig(
        name="npz",
        partition="column",
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        standardise_target=standardise_target,
    )
    return replace(build(pool, config.resolved(), seed), columns=facts)


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(str(i) for i in range(count))


def _joined(parts: Sequence[tuple[Any, Any]], names: Sequence[str]) -> tuple[Array, Array, Array]:
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in parts]
    for name, (x, y) in zip(names, pairs, strict=True):
        if x.ndim == 0 or y.ndim != 1 or len(x) != len(y):
            raise FedkinError(
                f"client '{name}' has inputs of shape {x.shape} and targets of shape {y.shape}; "
                "give one target per input"
            )
        if x.shape[1:] != pairs[0][0].shape[1:]:
            raise FedkinError(
                f"client '{name}' has samples of shape {x.shape[1:]} but client '{names[0]}' "
                f"{pairs[0][0].shape[1:]}; all must be alike"
            )
    owners = np.repeat(np.arange(len(pairs)), [len(y) for _, y in pairs])
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs]), owners


def _pool(x: Array, y: Array, task: Task, where: str) -> Pool:
    if x.ndim == 0 or y.ndim != 1 or len(x) != len(y):
        raise FedkinError(
            f"{where} has x of shape {x.shape} and y of shape {y.shape}; give one target per sample"
        )
    if len(y) == 0:
        raise FedkinError(f"{where} has no samples")
    finite(x, where)
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise FedkinError(f"{where} has a target that is missing or infinite; drop such rows")
    x = pixels(x) if x.dtype == np.uint8 else x
    x = x[:, None] if x.ndim == 1 else x
    if task == "regression" or (task == "auto" and y.dtype.kind == "f"):
        if y.dtype.kind not in "iufb":
            raise FedkinError(f"{where} has targets of type {y.dtype}; regression needs numbers")
        return Pool(x, y.astype(np.float64), None)
    labels, classes, names = encode_labels(_whole(y))
    return Pool(x, labels, classes, names)


def _like(pool: Pool, y: Array, x_test: Array, y_test: Array, where: str) -> tuple[Array, Array]:
    """The test part, encoded as the training part was."""
    task: Task = "regression" if pool.num_classes is None else "classification"
    part = _pool(x_test, y_test, task, where)
    assert not callable(part.x) and not callable(pool.x)  # noqa: PT018
    if part.x.shape[1:] != pool.x.shape[1:] or part.x.dtype != pool.x.dtype:
        raise FedkinError(
            f"{where} has samples of shape {part.x.shape[1:]} ({part.x.dtype}) but the training "
            f"data {pool.x.shape[1:]} ({pool.x.dtype}); both must be alike"
        )
    if pool.num_classes is None:
        return part.x, part.y
    if not pool.class_names:  # the labels stayed as they are
        numbers = {k: k for k in range(pool.num_classes)}
    else:
        numbers = {k: i for i, k in enumerate(np.unique(_whole(y)).tolist())}
    labels = [numbers.get(value, -1) for value in _whole(y_test).tolist()]
    if -1 in labels:
        strange = y_test[labels.index(-1)]
        raise FedkinError(f"{where} has class '{strange}', which the training data do not have")
    return part.x, np.array(labels, dtype=np.int64)


def _whole(y: Array) -> Array:
    """Whole numbers stored as floats (0.0, 1.0) as integers."""
    return y.astype(np.int64) if y.dtype.kind == "f" and (y == np.round(y)).all() else y


def _client_numbers(clients: Array, samples: int, where: str) -> tuple[tuple[str, ...], Array]:
    if clients.shape != (samples,):
        raise FedkinError(f"{where} has {samples} targets but clients of shape {clients.shape}")
    names, numbers = np.unique(clients, return_inverse=True)
    return tuple(str(n) for n in names), numbers.astype(np.int64)


def read_arrays(path: str) -> dict[str, Array]:
    """The arrays of an npz file by name; never a pickled object."""
    try:
        with given(path).open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                raise FedkinError(f"'{path}' holds a single array; save x and y with numpy.savez")
            return {key: found[key] for key in found.files}
    except (OSError, ValueError, EOFError, MemoryError, zlib.error, zipfile.BadZipFile) as error:
        if "Object arrays" in str(error):
            raise FedkinError(
                f"'{path}' contains pickled Python objects, which are not read for safety; "
                "save plain arrays of numbers or text"
            ) from None
        raise FedkinError(f"'{path}' is no npz file or is damaged; replace it") from None


def _array(arrays: dict[str, Array], path: str, key: str) -> Array:
    for name in (key, f"{key}_train"):
        if name in arrays:
            return arrays[name]
    raise FedkinError(
        f"'{path}' has no array '{key}' (it has: {', '.join(arrays) or 'none'}); save it under "
        "that name"
    )
