"""The `[data]` table of a run: which data, how clients share them, how they are split."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler

from fedkin.errors import FedkinError, unknown

# more than any machine holds: refused by name rather than by an overflow somewhere
MOST = 10**9

Partition = Literal["iid", "dirichlet", "classes", "shards", "powerlaw", "column"]
Task = Literal["auto", "classification", "regression"]

IMAGES: dict[str, Any] = {"num_clients": 20, "partition": "dirichlet"}
FILES: dict[str, Any] = {"standardise_target": True}
PLANTED: dict[str, Any] = {"partition": "column"}  # the generator itself makes the clients

# What each data set puts in place of a value the user left out.
DATASETS: dict[str, dict[str, Any]] = {
    "digits": IMAGES,
    "rotated-digits": {
        "num_clients": 24,
        "partition": "iid",
        "rotation_groups": 4,
        "test_fraction": 1 / 3,
    },
    "perm-synthetic": PLANTED | {"num_clients": 50, "samples": 500, "dim": 60},
    "pfedkm-synthetic": PLANTED | {"num_clients": 60, "dim": 60},
    "synthetic": PLANTED | {"num_clients": 30, "dim": 60, "test_fraction": 0.1},
    "linear": PLANTED | {"num_clients": 20, "samples": 100, "dim": 10, "spread": 1.0},
    "unified-synthetic": PLANTED
    | {"num_clients": 20, "samples": 1250, "dim": 15, "spread": 0.3, "test_fraction": 0.2},
    "unified-ws": PLANTED
    | {"num_clients": 20, "samples": 1250, "dim": 15, "spread": 10.0, "test_fraction": 0.2},
    "crowd": PLANTED
    | {"num_clients": 1000, "samples": 20, "dim": 60, "spread": 0.3, "test_fraction": 0.2},
    "mnist": IMAGES,
    "fashion-mnist": IMAGES,
    "kmnist": IMAGES,
    "emnist": IMAGES | {"subset": "balanced"},
    "cifar10": IMAGES,
    "cifar100": IMAGES,
    "images": IMAGES,
    "npz": FILES,
    "csv": FILES,
    "parquet": FILES,
    "hf": FILES,
}
COMMON: dict[str, Any] = {
    "test_fraction": 0.25,
    "rotation_groups": 1,
    "label_groups": 1,
    "standardise_target": False,
}
SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".npz": "npz", ".zip": "images"}


class DataConfig(BaseModel):
    """Everything needed to make the clients' data; with a seed it names them bit for bit.

    A value left out (None) takes the data set's own default: see `resolved`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(
        default="rotated-digits",
        description="data set (digits, mnist, cifar10, perm-synthetic, ...), kind of file "
        "(images, npz, csv, parquet, hf), or directly a .csv, .parquet, .npz or .zip file",
    )
    path: str | None = Field(
        default=None, description="file or folder to read; for hf the data set's name on the hub"
    )
    data_dir: str | None = Field(
        default=None,
        description="folder with known data sets, searched before FEDKIN_DATA and the cache",
    )
    subset: str | None = Field(
        default=None,
        description="EMNIST split (balanced, letters, ...) or Hugging Face configuration",
    )
    num_clients: int | None = Field(default=None, ge=1, le=MOST, description="number of clients")
    partition: Partition | None = Field(
        default=None,
        description="how samples are divided: iid, dirichlet, classes, shards, powerlaw, column "
        "(default: column where the clients are known, otherwise dirichlet)",
    )
    alpha: float = Field(
        default=0.5,
        gt=0,
        le=MOST,
        description="Dirichlet concentration: small is skewed, large is even",
    )
    classes_per_client: int = Field(
        default=2, ge=1, le=MOST, description="classes per client (partition classes)"
    )
    class_order: Literal["random", "ring"] = Field(
        default="random",
        description="which classes (partition classes): drawn at random, or on a ring client i's "
        "are i, i+1, ...",
    )
    shards_per_client: int = Field(
        default=2, ge=1, le=MOST, description="shards per client (partition shards)"
    )
    size_power: float | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="client sizes fall as rank^-power (partitions powerlaw, default 1, and "
        "classes, default 0: equal)",
    )
    size_range: tuple[int, int] | None = Field(
        default=None,
        description="sizes of the smallest and the largest client (partition classes), as in "
        "[470, 4116]; those between are such that all samples are used",
    )
    min_per_client: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="fewest samples a client may have before the split (default 10 where the data "
        "suffice); with partition column smaller clients are left out",
    )
    train_per_client: int | None = Field(
        default=None, ge=1, le=MOST, description="at most this many training samples per client"
    )
    test_per_client: int | None = Field(
        default=None, ge=1, le=MOST, description="at most this many test samples per client"
    )
    official_test: bool | Literal["leave-out"] = Field(
        default=True,
        description="divide the set's official test samples in each client's class shares; "
        "false: pool them with the others and split every client's own by test_fraction; "
        "leave-out: split the training samples alone",
    )
    test_fraction: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="share of a client's samples kept for testing (default 0.25)",
    )
    test: str | None = Field(
        default=None,
        pattern=r"^folds:([2-9]|[1-9]\d|100)$",
        description="folds:5 tests every row once: five trainings (2 to 100), each with another "
        "fifth of every client's rows held out, their scores pooled",
    )
    fold: int | None = Field(
        default=None, ge=1, le=MOST, description="with test = folds:5 only this one of them, from 1"
    )
    common_test: int = Field(
        default=0,
        ge=0,
        le=MOST,
        description="so many test samples of all clients together are added to everybody's own",
    )
    validation_fraction: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of a client's training samples kept for validation",
    )
    unseen: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of clients kept out of training; their models are judged as newcomers'",
    )
    rotation_groups: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="feature shift: images of group g of k turned by g * 360/k degrees",
    )
    label_groups: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="label shift: each group but the first permutes the labels",
    )
    client_column: str | None = Field(default=None, description="table column naming the client")
    target_column: str | None = Field(default=None, description="table column to predict")
    features: tuple[str, ...] = Field(
        default=(), description="table columns that models see, as in age,sex (default: all others)"
    )
    drop_columns: tuple[str, ...] = Field(
        default=(), description="table columns to leave out, as in name,visit"
    )
    group_column: str | None = Field(
        default=None,
        description="table column naming the person (or batch): its rows are never on both sides "
        "of a split",
    )
    time_column: str | None = Field(
        default=None, description="table column with dates or numbers: later rows are held out"
    )
    client_table: str | None = Field(
        default=None,
        description="file (.csv, .parquet) with a row per client: its name under client, and facts "
        "in other columns, such as the rate that capacity names",
    )
    task: Task = Field(
        default="auto", description="what the target is: auto, classification, regression"
    )
    standardise: bool | None = Field(
        default=None,
        description="features to mean 0 and deviation 1 on the training data "
        "(default: true for tables, false otherwise)",
    )
    standardise_target: bool | None = Field(
        default=None,
        description="targets that are numbers to mean 0 and deviation 1 on the training data, "
        "undone in every result (default: true for files, false for generators)",
    )
    unit_norm: bool = Field(default=False, description="then scale each sample to Euclidean norm 1")
    samples: int | None = Field(
        default=None, ge=2, le=MOST, description="generators: samples per client"
    )
    dim: int | None = Field(
        default=None, ge=1, le=MOST, description="generators: number of features"
    )
    synthetic_a: float = Field(
        default=0.5,
        ge=0,
        le=MOST,
        description="synthetic(a, b): how much the clients' models differ",
    )
    synthetic_b: float = Field(
        default=0.5,
        ge=0,
        le=MOST,
        description="synthetic(a, b): how much the clients' inputs differ",
    )
    spread: float | None = Field(
        default=None,
        ge=0,
        description="unified and linear generators: how much the clients' models differ",
    )
    noise: float = Field(
        default=0.1, ge=0, le=MOST, description="linear generator: deviation of the noise on y"
    )

    @field_validator("features", "drop_columns", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @model_validator(mode="wrap")
    @classmethod
    def _in_one_sentence(cls, values: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(values, dict) and isinstance(values.get("name"), str):
            values = _named(values)
        try:
            config = build(values)
        except ValidationError as error:
            raise _sentence(error) from None
        if config.name not in DATASETS:
            raise unknown("data set", config.name, DATASETS)
        _check_folds(config)
        return config

    @property
    def folds(self) -> int | None:
        """How many folds the test is made of; None for a single split."""
        return int(self.test.removeprefix("folds:")) if self.test else None

    def resolved(self) -> DataConfig:
        """The same configuration with the data set's defaults in place of what was left out."""
        defaults = COMMON | DATASETS[self.name]
        missing = {key: value for key, value in defaults.items() if getattr(self, key) is None}
        if self.folds:  # they say how much is held out
            missing.pop("test_fraction")
        return self.model_copy(update=missing)


def _check_folds(config: DataConfig) -> None:
    """Refuse what does not go with testing every row once."""
    count = config.folds
    if count is None:
        if config.fold is not None:
            raise FedkinError(f"fold = {config.fold} needs the number of folds: test = folds:5")
        return
    if config.fold is not None and config.fold > count:
        raise FedkinError(f"fold = {config.fold} is more than the {count} of test = {config.test}")
    if config.time_column:
        raise FedkinError(
            f"test = {config.test} holds out early rows too, and time_column asks for later ones: "
            "leave one of them out"
        )
    for key in ("test_fraction", "test_per_client", "common_test", "unseen"):
        if getattr(config, key) or (key == "test_fraction" and config.test_fraction is not None):
            raise FedkinError(
                f"test = {config.test} tests every row once, and {key} = {getattr(config, key)} "
                "asks for something else: leave one of them out"
            )


def _named(values: dict[str, Any]) -> dict[str, Any]:
    """`name = "patients.csv"` is short for `name = "csv", path = "patients.csv"`."""
    kind = SUFFIXES.get(Path(values["name"]).suffix.lower())
    if kind is None or values.get("path") is not None:
        return values
    return values | {"name": kind, "path": values["name"]}


def _sentence(error: ValidationError) -> FedkinError:
    """The first thing pydantic found, in the user's words."""
    first = error.errors()[0]
    key, value = ".".join(map(str, first["loc"])), first["input"]
    if first["type"] == "extra_forbidden":
        return unknown("data key", key, DataConfig.model_fields)
    if first["type"] == "literal_error":
        return unknown(key, value, re.findall(r"'([^']+)'", first["ctx"]["expected"]))
    reason = first["msg"].removeprefix("Input ").replace("a valid integer", "a whole number")
    return FedkinError(f"data key '{key}' {reason}, but it is {value!r}")
