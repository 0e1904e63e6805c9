"""Settings of a run that do not depend on its method."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

import torch

from fedkin.core.faults import Faults
from fedkin.core.robust import Aggregate
from fedkin.errors import FedkinError, unknown
from fedkin.runs.limits import LONGEST_WAIT, MOST_ROUNDS, MOST_THREADS

SCHEDULES = ("constant", "cosine", "step")
SAMPLINGS = ("fixed", "poisson")
ABOVE_ZERO = ("dp_epsilon", "dp_cohort", "dp_most_samples")
LOSSES = ("wait", "skip")
SIZES = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class Settings:
    """Settings of a run that do not depend on its method: see `fedkin config` for each key."""

    rounds: int = 100
    seed: int = 0
    fraction: float = 1.0
    eval_every: int = 10
    checkpoint_every: int = 10
    baseline: bool = True
    train_scores: bool = False
    metric: Sequence[str | Callable[..., float]] = ()
    patience: int | None = None
    lr_schedule: str = "constant"
    lr_warm_up: int = 0
    lr_every: int = 30
    lr_factor: float = 0.1
    engine: str = "embedded"
    strategy: str = "auto"
    block_size: int | None = None
    threads: int | None = None
    memory: int | str | None = None
    ray_address: str | None = None
    shards: int | None = None
    on_loss: str = "wait"
    ray_timeout: float = 600.0
    gpus_per_shard: float = 0.0
    faults: Faults = field(default_factory=Faults)
    sampling: str = "fixed"
    aggregate: str = "mean"
    dp_clip: float | dict[str, float] | None = None
    dp_noise: float | None = None
    dp_epsilon: float | None = None
    dp_delta: float | None = None
    dp_quantile: float | None = None
    dp_cohort: int | None = None
    dp_most_samples: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "rounds",
            "eval_every",
            "checkpoint_every",
            "block_size",
            "threads",
            "lr_every",
            "shards",
            "patience",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise FedkinError(f"{name} must be at least 1, not {value}")
        for name, most in (("rounds", MOST_ROUNDS), ("threads", MOST_THREADS)):
            value = getattr(self, name)
            if value is not None and value > most:
                raise FedkinError(f"{name} must be at most {most}, not {value}")
        if not 0 <= self.seed < 2**63:
            raise FedkinError(f"seed must be at least 0 and below 2^63, not {self.seed}")
        if not 0 < self.fraction <= 1:
            raise FedkinError(f"fraction must be above 0 and at most 1, not {self.fraction}")
        if self.lr_schedule not in SCHEDULES:
            raise unknown("lr_schedule", self.lr_schedule, SCHEDULES)
        if self.lr_warm_up < 0 or not 0 < self.lr_factor <= 1:
            raise FedkinError(
                "lr_warm_up must be at least 0 and lr_factor above 0 and at most 1, not "
                f"{self.lr_warm_up} and {self.lr_factor}"
            )
        if self.on_loss not in LOSSES:
            raise unknown("on_loss", self.on_loss, LOSSES)
        if self.faults.delay > LONGEST_WAIT:
            raise FedkinError(
                f"delay must be at most {LONGEST_WAIT:g} seconds, not {self.faults.delay}"
            )
        if not 0 < self.ray_timeout <= LONGEST_WAIT or self.gpus_per_shard < 0:
            raise FedkinError(
                f"ray_timeout must be above 0 and at most {LONGEST_WAIT:g} seconds, and "
                "gpus_per_shard at least 0, not "
                f"{self.ray_timeout} and {self.gpus_per_shard}"
            )
        if self.sampling not in SAMPLINGS:
            raise unknown("sampling", self.sampling, SAMPLINGS)
        Aggregate.parse(self.aggregate)
        self._check_privacy()
        parse_size(self.memory)
        if isinstance(self.metric, str) or callable(self.metric):
            object.__setattr__(self, "metric", (self.metric,))

    def _check_privacy(self) -> None:
        object.__setattr__(self, "dp_clip", parse_clip(self.dp_clip))
        clip = self.dp_clip
        limits = clip if isinstance(clip, dict) else {} if clip is None else {"": clip}
        above = [("dp_clip", value) for value in limits.values()]
        above += [(name, getattr(self, name)) for name in ABOVE_ZERO]
        for name, value in above:
            if value is not None and not 0 < value < inf:
                raise FedkinError(f"{name} must be above 0, not {value}")
        if self.dp_noise is not None and not 0 <= self.dp_noise < inf:
            raise FedkinError(f"dp_noise must be at least 0, not {self.dp_noise}")
        for name in ("dp_delta", "dp_quantile"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise FedkinError(f"{name} must be above 0 and below 1, not {value}")


def parse_clip(given: Any) -> float | dict[str, float] | None:
    """One limit for an answer's tensors together, or one for each, as in dx=1,dc=0.5."""
    if given is None or isinstance(given, float | int):
        return given
    pairs: Any = given.items() if isinstance(given, Mapping) else None
    try:
        if pairs is None and "=" not in given:
            return float(given)
        pairs = pairs or [part.split("=") for part in given.split(",")]
        return {name.strip(): float(value) for name, value in pairs}
    except (TypeError, ValueError, AttributeError):
        raise FedkinError(
            f"dp_clip is {given!r}: write a number, or one for each tensor as in dx=1,dc=0.5"
        ) from None


def make_settings(values: Mapping[str, Any]) -> Settings:
    """Settings by name; for an unknown one the closest name is suggested."""
    names = [f.name for f in fields(Settings)]
    for name in values:
        if name not in names:
            raise unknown("setting", name, names)
    return Settings(**values)


def parse_size(size: int | str | None) -> int | None:
    """Bytes in `500MB`, `2GB` or a plain number."""
    if size is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]B)?\s*", str(size).upper(), re.ASCII)
    if not found:
        raise FedkinError(f"memory = '{size}' is not a size: write 500MB or 2GB")
    return int(float(found[1]) * SIZES[found[2] or ""])


def check_device(name: str) -> None:
    """A FedkinError if torch cannot compute there."""
    try:
        torch.zeros((), device=name).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise FedkinError(f"device '{name}' cannot be used: {reason}") from None
