"""Settings of a run that do not depend on its method."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fedkin.core.faults import Faults
from fedkin.errors import FedkinError, unknown

SCHEDULES = ("constant", "cosine", "step")
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
        if not self.ray_timeout > 0 or self.gpus_per_shard < 0:
            raise FedkinError(
                "ray_timeout must be above 0 and gpus_per_shard at least 0, not "
                f"{self.ray_timeout} and {self.gpus_per_shard}"
            )
        parse_size(self.memory)
        if isinstance(self.metric, str) or callable(self.metric):
            object.__setattr__(self, "metric", (self.metric,))


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
