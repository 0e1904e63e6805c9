"""A recipe: everything needed to repeat a paper's table, and what the paper printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedkin.comparison import Entry
from fedkin.config import make_config


@dataclass(frozen=True)
class Line:
    """A method with its numbers, and the accuracy in print in per cent (None: not in the paper)."""

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    printed: float | None = None

    @property
    def slug(self) -> str:
        """The label as a folder's name."""
        return re.sub(r"[^a-z0-9=]+", "-", self.label.lower()).strip("-")


@dataclass(frozen=True)
class Recipe:
    """A table's column: the same clients, model and rounds for all its lines.

    `run` holds the values of a run's config apart from method, options and seed; `judged`
    says which models the printed numbers are about; `chosen` what the paper leaves open.
    """

    title: str
    run: Mapping[str, Any]
    lines: tuple[Line, ...]
    judged: Literal["personal", "global"]
    chosen: str = ""

    def entries(self, seeds: int, **changes: Any) -> list[Entry]:
        """The runs it takes; `changes` (such as fewer rounds) replace values of the config."""
        return [
            Entry(
                line.slug,
                seed,
                make_config(
                    {**self.run, **changes, "method": line.method, "options": dict(line.options),
                     "seed": seed},
                    self.title,
                ),
            )
            for line in self.lines
            for seed in range(seeds)
        ]  # fmt: skip
