"""What the files of a run folder contain: checked before anything believes it."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    TypeAdapter,
    field_validator,
    model_validator,
)

from fedkin.data.columns import KINDS
from fedkin.data.preparation import Preparation
from fedkin.runs.limits import MOST_ROUNDS, MOST_THREADS

STORED = ConfigDict(frozen=True, allow_inf_nan=False)  # newer versions may write more keys
# numbers of one sample and clients of a run: what is more cannot be a run's
MOST_NUMBERS, MOST_CLIENTS = 10**8, 10**7

Name = Annotated[str, Field(max_length=100_000)]
Word = Annotated[str, Field(min_length=1, max_length=200)]
Size = Annotated[int, Field(ge=1, le=MOST_NUMBERS)]
Rate = Annotated[float, Field(gt=0, le=1)]
Number = Literal["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
                 "uint8", "bool"]  # fmt: skip


class StoredConfig(BaseModel):
    """config.toml as reports use it: of any version, and possibly of a run started in Python."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    method: Annotated[str, Field(min_length=1, max_length=10_000)]
    seed: int = Field(0, ge=0, lt=2**63)
    rounds: int | None = Field(None, ge=1, le=MOST_ROUNDS)
    options: dict[str, Any] = {}
    data: dict[str, Any] = {}
    model: dict[str, Any] = {}
    files: dict[str, str] = {}
    made_with: dict[str, str] = {}


# inputs.json -----------------------------------------------------------------------------


class ColumnFacts(BaseModel):
    """How a table's column becomes numbers, as in `fedkin.data.columns`."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="forbid")

    kind: Literal["number", "category", "date"]
    name: Name
    median: float = 0.0
    mean: float = 0.0
    deviation: PositiveFloat = 1.0
    indicator: bool = False
    values: tuple[Name, ...] = ()
    commonest: Name = ""
    other: bool = False
    format: Annotated[str, Field(max_length=100)] | None = None
    hours: bool = False

    @model_validator(mode="before")
    @classmethod
    def _kind(cls, facts: Any) -> Any:
        """Older files do not say it."""
        if isinstance(facts, dict) and "kind" not in facts:
            return {"kind": "category" if "values" in facts else "number", **facts}
        return facts

    @model_validator(mode="after")
    def _own_keys(self) -> Self:
        foreign = self.model_fields_set - {"kind", *KINDS[self.kind].__dataclass_fields__}
        if foreign:
            raise ValueError(f"{self.kind} columns have no {sorted(foreign)[0]}")
        return self


class PreparationFacts(BaseModel):
    """How raw samples become inputs."""

    model_config = STORED

    columns: list[ColumnFacts] | None
    pixels: bool
    mean: list[Any] | float | None
    deviation: list[Any] | float | None
    unit_norm: bool
    target: tuple[float, PositiveFloat] | None = None

    @field_validator("mean", "deviation")
    @classmethod
    def _numbers(cls, values: Any) -> Any:
        try:
            found = np.array(values if values is not None else 0.0, np.float32)
        except (TypeError, ValueError, OverflowError):
            raise ValueError("should be numbers, in as many rows as samples have") from None
        if not np.isfinite(found).all():
            raise ValueError("should be finite numbers")
        return values

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.mean is None) != (self.deviation is None):
            raise ValueError("should have both mean and deviation, or neither")
        if self.deviation is not None and not (np.array(self.deviation, np.float32) > 0).all():
            raise ValueError("should have deviations above zero")
        return self

    def preparation(self) -> Preparation:
        columns = [c.model_dump(exclude_unset=True) for c in self.columns or ()]
        facts = {**self.model_dump(), "columns": None if self.columns is None else columns}
        return Preparation.from_facts(facts)


class InputFacts(BaseModel):
    """Inputs and outputs of a run's models."""

    model_config = STORED

    clients: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MOST_CLIENTS)]
    input_shape: Annotated[tuple[Size, ...], Field(max_length=8)]
    outputs: Size
    num_classes: Size | None
    class_names: tuple[Name, ...]
    loss: Annotated[str, Field(max_length=1000)]
    dtype: Literal["float32", "float64"]
    preparation: PreparationFacts
    input_dtype: Literal[Number, ""] = ""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if prod(self.input_shape) > MOST_NUMBERS:
            raise ValueError(f"should have samples of at most {MOST_NUMBERS} numbers")
        if self.class_names and len(self.class_names) != self.num_classes:
            raise ValueError(
                f"should have as many class_names ({len(self.class_names)}) as num_classes"
            )
        how = self.preparation
        if how.columns is not None:
            width = sum(column.width for column in how.preparation().columns or ())
            if self.input_shape != (width,):
                raise ValueError(f"should have the input_shape of its columns, ({width},)")
        if how.mean is not None:
            shapes = {np.array(how.mean).shape, np.array(how.deviation).shape}
            if shapes != {self.input_shape}:
                raise ValueError("should have a mean and a deviation of the input_shape")
        return self


# what is small ---------------------------------------------------------------------------


class MeasureFacts(BaseModel):
    """One metric in measures.json."""

    model_config = STORED

    name: Word
    title: Word
    higher: bool = True
    share: bool = False


class Choice(BaseModel):
    """How an engine computes one form of the problem."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    strategy: Word
    rate: Rate = 1.0
    scaler: bool = False
    own_classes: bool | Literal["zeroed"] = False
    held_out: bool = False
    module: str = Field("", max_length=4096)
    shard: int | None = Field(None, ge=0)


Choices = list[Choice]


class StrategyFacts(BaseModel):
    """strategy.json: threads, and the choices of each contender."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    threads: int | None = Field(None, ge=1, le=MOST_THREADS)
    method: Choices = []
    local: Choices = []


class CheckpointFacts(BaseModel):
    """facts.json of a checkpoint that is whole."""

    model_config = STORED

    about: dict[str, Any]
    numbers: dict[str, dict[str, Any]]
    choices: dict[str, Choices]

    def plain_choices(self) -> dict[str, list[dict[str, Any]]]:
        """As engines gave them."""
        return {
            name: [choice.model_dump(exclude_unset=True) for choice in own]
            for name, own in self.choices.items()
        }


class CheckpointFile(BaseModel):
    """facts.json: what it says, and by which it is known to be as it was written."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: int = Field(ge=0, le=MOST_ROUNDS)
    sha256: Word
    facts: Any
    own_sha256: Word


class PrivacyFacts(BaseModel):
    """privacy.json: what was released, and what that rests on."""

    model_config = ConfigDict(extra="allow", frozen=True)

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    cohort: float | None = None
    adjacency: str = ""
    sampling: str = ""
    budget_spent: bool = False
    assumptions: list[str] = []
    outside: list[str] = []

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.epsilon is not None and None in (self.delta, self.noise_multiplier):
            raise ValueError("should have a delta and a noise_multiplier beside epsilon")
        return self


class Released(BaseModel):
    """What a checkpoint keeps of privacy: how often what was released, and the limits' factors."""

    model_config = STORED

    rounds: list[tuple[int, int, Annotated[int, Field(ge=0)]]]
    factors: dict[str, PositiveFloat]


class PlanRow(BaseModel):
    """One run of a comparison; its label is the name of a folder in the comparison's own."""

    model_config = STORED

    label: Annotated[str, Field(pattern=r"^[^/\x00]+$", max_length=250)]
    seed: int = Field(ge=0, lt=2**63)
    config: dict[str, Any]

    @field_validator("label")
    @classmethod
    def _inside(cls, label: str) -> str:
        if label in (".", ".."):
            raise ValueError("should name a folder inside the comparison's")
        return label


INPUTS: TypeAdapter[InputFacts] = TypeAdapter(InputFacts)
MEASURES = TypeAdapter(Annotated[list[MeasureFacts], Field(min_length=1, max_length=1000)])
STRATEGY: TypeAdapter[StrategyFacts] = TypeAdapter(StrategyFacts)
CHECKPOINT: TypeAdapter[CheckpointFile] = TypeAdapter(CheckpointFile)
PLAN = TypeAdapter(Annotated[list[PlanRow], Field(min_length=1, max_length=10**6)])
PRIVACY: TypeAdapter[PrivacyFacts] = TypeAdapter(PrivacyFacts)
BEGUN = TypeAdapter(dict[Literal["begun"], Annotated[int, Field(ge=0, le=MOST_ROUNDS)]])
# a stacked file's parameters in order: their names and shapes
LAYOUT = TypeAdapter(list[tuple[Name, Annotated[tuple[Size, ...], Field(max_length=8)]]])
