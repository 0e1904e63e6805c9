"""What a site holds a server to that has announced differential privacy."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

from pydantic import BaseModel, Field

from fedkin.core.guard import guard_of
from fedkin.runs.config import RunConfig
from fedkin.runs.settings import parse_clip
from fedkin.runs.sites.policy import PolicyError
from fedkin.runs.validation import STRICT

NEAR = 1e-6


class AnnouncedPrivacy(BaseModel):
    """The privacy that a run was announced with: its limits and its noise, or its epsilon."""

    model_config = STRICT

    clip: float | dict[str, float]
    noise: float | None = Field(None, ge=0)
    epsilon: float | None = Field(None, gt=0)
    delta: float | None = Field(None, gt=0, lt=1)
    quantile: float | None = Field(None, gt=0, lt=1)

    @classmethod
    def of(cls, config: RunConfig) -> dict[str, Any] | None:
        """What a config asks for, as it is announced."""
        if config.dp_clip is None:
            return None
        names = ("clip", "noise", "epsilon", "delta", "quantile")
        found = {name: getattr(config, f"dp_{name}") for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def check(self, facts: Mapping[str, Any], shares: int | None) -> None:
        """Raise if an answer would leave longer than announced, or with too little noise of its
        own where sites add it (`shares`: as many as must be in a sum)."""
        guard = guard_of(facts.get("guard"))
        if guard is None:
            raise PolicyError("an answer that is not clipped, in a run announced as private")
        clip = parse_clip(self.clip)
        limits = clip if isinstance(clip, dict) else {"": clip}
        if guard.limits and self.quantile is None and dict(guard.limits) != limits:
            raise PolicyError("an answer clipped to another length than was announced")
        if shares is not None and not (guard.secret and guard.noise > 0):
            raise PolicyError("an answer without noise of this site's own")
        least = (self.noise or 0.0) / sqrt(shares or 1)
        if shares is not None and guard.noise < least * (1 - NEAR):
            raise PolicyError("an answer with less noise than was announced")

    def words(self, by_sites: bool) -> str:
        """For the site's people."""
        clip = parse_clip(self.clip)
        length = f"{clip:g}" if isinstance(clip, float | int) else str(clip)
        noise = f"noise {self.noise:g} times that" if self.noise is not None else "noise"
        aim = "" if self.epsilon is None else f" for epsilon {self.epsilon:g}"
        who = "this site" if by_sites else "the server"
        first = "at first to" if self.quantile is not None else "to"
        return f"clipped {first} length {length}; {who} adds {noise}{aim}"
