"""One site's own file as a single client, made ready in the way that all sites agreed on.

No site sees another's data, so what `fedkin run` learns from a whole table (which
columns and categories there are, which classes) is stated once, for all sites.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedkin.data.arrays import read_arrays
from fedkin.data.build import build
from fedkin.data.clients import ClientData
from fedkin.data.columns import CategoryColumn, Column, NumberColumn, as_numbers
from fedkin.data.config import SUFFIXES, DataConfig
from fedkin.data.partition import Array, Rows
from fedkin.data.pool import Encoded, Pool, finite, pixels
from fedkin.data.preparation import Preparation
from fedkin.data.tables import read_frame
from fedkin.errors import FedkinError, unknown

if TYPE_CHECKING:
    import pandas as pd

# keys of [data] that hold at every site; the file itself is the site's own choice
SHARED_KEYS = (
    "target_column", "standardise", "standardise_target", "unit_norm", "test_fraction",
    "validation_fraction", "train_per_client", "test_per_client",
)  # fmt: skip


class Agreement(BaseModel):
    """The `[sites]` table of a served run: what every site's data mean."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    features: list[str] = Field(
        default=[], description="tables: the feature columns, in the order of the model's inputs"
    )
    categories: dict[str, list[str]] = Field(
        default={}, description="tables: all values of each feature that is a category"
    )
    classes: list[str | int] | int | None = Field(
        default=None,
        description="the target's classes in order, or how many (labels 0, 1, ...); "
        "left out: the target is a number",
    )
    scale: dict[str, tuple[float, float]] = Field(
        default={},
        description="tables: (centre, spread) of number columns, the target too; left out: the "
        "mean and deviation of the site's own training data",
    )

    @property
    def class_names(self) -> tuple[str, ...]:
        if self.classes is None:
            return ()
        names = range(self.classes) if isinstance(self.classes, int) else self.classes
        return tuple(str(name) for name in names)


def load_site(
    path: Path, name: str, shared: dict[str, Any], agreement: Agreement, seed: int
) -> ClientData:
    """The client `name` from its csv, parquet or npz file."""
    kind = SUFFIXES.get(path.suffix.lower())
    if kind not in ("csv", "parquet", "npz"):
        raise FedkinError(f"a site's data are a .csv, .parquet or .npz file, not '{path}'")
    values = {key: value for key, value in shared.items() if key in SHARED_KEYS}
    config = DataConfig(name=kind, path=str(path), partition="column", **values).resolved()
    where = f"'{path}'"
    pool = _arrays(config, agreement, where) if kind == "npz" else _table(config, agreement, where)
    pool.clients, pool.client_names = np.zeros(len(pool.y), np.int64), (name,)
    return build(pool, config, seed)


def _table(config: DataConfig, agreement: Agreement, where: str) -> Pool:
    if not agreement.features:
        raise FedkinError("the config's [sites] table names no features: list the feature columns")
    frame = read_frame(config).rename(columns=str).reset_index(drop=True)
    target = config.target_column or "target"
    for column in (*agreement.features, target):
        if column not in frame.columns:
            raise FedkinError(f"{unknown('column', column, frame.columns)} in {where}")
    if not len(frame):
        raise FedkinError(f"{where} has no rows")

    def encode(train: Rows) -> Encoded:
        columns = [
            _column(frame[feature], train, agreement, config.standardise is not False)
            for feature in agreement.features
        ]
        return Encoded(Preparation(columns).encode(frame, where), columns, [])

    y = _target(frame[target], agreement, where)
    names = agreement.class_names
    scale = agreement.scale.get(target)
    return Pool(encode, y, len(names) or None, names, target_scale=scale)


def _column(values: pd.Series[Any], train: Rows, agreement: Agreement, standardise: bool) -> Column:
    name = str(values.name)
    known = values.iloc[train].dropna()
    if name in agreement.categories:
        kinds = agreement.categories[name]
        words = known.map(str)
        common = words[words.isin(kinds)].mode()
        return CategoryColumn(name, kinds, str(common.iloc[0]) if len(common) else kinds[0])
    numbers = as_numbers(values)
    if numbers is None:
        raise FedkinError(
            f"column '{name}' has words: list all its values under [sites.categories], "
            "or leave it out of features"
        )
    own = numbers[train][np.isfinite(numbers[train])]
    stated = agreement.scale.get(name)
    if stated is not None:
        centre, spread = stated
    elif standardise and len(own):
        centre, spread = float(own.mean()), float(own.std()) or 1.0
    else:
        centre, spread = 0.0, 1.0
    return NumberColumn(name, float(np.median(own)) if len(own) else centre, centre, spread)


def _target(column: pd.Series[Any], agreement: Agreement, where: str) -> Array:
    if column.isna().any():
        row = int(np.flatnonzero(column.isna())[0]) + 1
        raise FedkinError(f"target '{column.name}' of {where} is missing in row {row}; drop it")
    numbers = as_numbers(column)
    if agreement.classes is None:
        if numbers is None:
            raise FedkinError(
                f"target '{column.name}' of {where} is not a number: list the classes under [sites]"
            )
        return numbers
    if numbers is not None and (numbers == np.round(numbers)).all():
        return _labels(numbers.astype(np.int64), agreement, where)
    return _labels(column.map(str).to_numpy(), agreement, where)


def _labels(values: Array, agreement: Agreement, where: str) -> Array:
    """Class numbers, by the agreed classes' order."""
    numbers = {name: i for i, name in enumerate(agreement.class_names)}
    kinds, inverse = np.unique(values, return_inverse=True)
    strange = next((str(kind) for kind in kinds if str(kind) not in numbers), None)
    if strange is not None:
        raise FedkinError(f"{unknown('class', strange, numbers)} in {where}")
    labels: Array = np.array([numbers[str(kind)] for kind in kinds], np.int64)[inverse]
    return labels


def _arrays(config: DataConfig, agreement: Agreement, where: str) -> Pool:
    assert config.path is not None
    arrays = read_arrays(config.path)
    for name in ("x", "y"):
        if name not in arrays:
            raise FedkinError(f"{where} has no array '{name}'; save it under that name")
    x, y = _pair(arrays["x"], arrays["y"], agreement, where)
    names = agreement.class_names
    pool = Pool(x, y, len(names) or None, names if not isinstance(agreement.classes, int) else ())
    if "x_test" in arrays and "y_test" in arrays:
        pool.test = _pair(arrays["x_test"], arrays["y_test"], agreement, where)
        pool.test_clients = np.zeros(len(pool.test[1]), np.int64)
    return pool


def _pair(x: Array, y: Array, agreement: Agreement, where: str) -> tuple[Array, Array]:
    if y.ndim != 1 or len(x) != len(y) or not len(y):
        raise FedkinError(f"{where} has x of shape {x.shape} and y of shape {y.shape}")
    finite(x, where)
    x = pixels(x) if x.dtype == np.uint8 else x
    if agreement.classes is None:
        return x, y.astype(np.float64)
    return x, _labels(y, agreement, where)
