"""The tables of a config file beside a run's own values and its data: the model, and faults."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from fedkin.core.losses import LOSSES
from fedkin.core.problem import NormName
from fedkin.data.config import MOST
from fedkin.errors import FedkinError
from fedkin.runs.limits import LONGEST_WAIT
from fedkin.runs.validation import STRICT


class ModelConfig(BaseModel):
    """The `[model]` table: which model, its loss, and how minibatches are drawn."""

    model_config = STRICT

    name: str = Field(
        "mlp:64",
        description="linear, logistic, mlp, cnn, ...; widths as in mlp:200,100; or a class (or "
        "function) that makes a module, as in mymodels.py:Net",
    )
    args: dict[str, Any] = Field(
        default_factory=dict,
        description="arguments of a model from a file or package, as in '{\"width\": 32}'",
    )
    model_column: str | None = Field(
        None,
        description="client column with the name of each client's own model, as in cnn or "
        "mymodels.py:Net; name is then a small model that all can carry",
    )
    client_models: dict[str, str] = Field(
        default_factory=dict, description="the same by the clients' names, in place of a column"
    )
    loss: str | None = Field(
        None,
        description=f"{', '.join(LOSSES)} (default: what fits the target), or a function of "
        "(outputs, targets), one value per example, as in mylosses.py:loss",
    )
    class_weights: Literal["balanced"] | tuple[float, ...] | None = Field(
        None,
        description="how much an example of each class counts in the loss, as in 1,5, or balanced: "
        "rare classes as much as common ones in all",
    )
    l2: float = Field(0.0, ge=0, description="adds l2/2*|v|^2 to every client's loss")
    batch_size: int = Field(20, ge=1, le=MOST, description="samples per minibatch")
    reshuffle: bool = Field(
        False, description="minibatches in reshuffled passes instead of drawn with replacement"
    )
    norm: NormName = Field(
        "shared",
        description="batch norms: shared (statistics of own data), local (FedBN), or averaged",
    )
    augment: str | None = Field(
        None,
        description="random changes of training images: flip, crop:4 (padded by 4 pixels), or a "
        "function of (examples, numbers), as in mychanges.py:turn; several with commas",
    )
    device: str = Field("cpu", description="where torch computes: cpu, cuda, mps, ...")
    dtype: Literal["float32", "float64"] = Field("float32", description="precision of computation")

    @field_validator("class_weights", mode="before")
    @classmethod
    def _weights(cls, value: Any) -> Any:
        if not isinstance(value, str) or value == "balanced":
            return value
        try:
            return tuple(float(part) for part in value.split(","))
        except ValueError:
            raise FedkinError(
                f"class_weights is '{value}': write balanced, or a number per class as in 1,5"
            ) from None


class FaultConfig(BaseModel):
    """The `[faults]` table: simulated failures of clients."""

    model_config = STRICT

    drop: float = Field(0.0, ge=0, le=1, description="share of requests that are lost")
    nan: float = Field(0.0, ge=0, le=1, description="share of answers that are NaN")
    slow: float = Field(0.0, ge=0, le=1, description="share of answers that are late")
    delay: float = Field(0.0, ge=0, le=LONGEST_WAIT, description="seconds a slow answer is late")
    timeout: float | None = Field(
        None, gt=0, le=LONGEST_WAIT, description="seconds the server waits for an answer"
    )
