"""Progress where there is no terminal: plain lines, not too many, and the last one always."""

from __future__ import annotations

from typing import Any

import pytest

from fedkin.command import screen
from fedkin.core.metrics import get_metric
from fedkin.runs.measures import Measure
from fedkin.runs.progress import Progress


def test_a_log_gets_lines_and_not_too_many(monkeypatch: pytest.MonkeyPatch):
    said: list[Any] = []
    monkeypatch.setattr(screen, "say", said.append)
    advance = screen.plain_progress("scaffold")
    measure = Measure.of(get_metric("accuracy"))
    for number in (1, 2, 3):
        advance(Progress(number, 3, None if number < 3 else 0.5, measure, {}))
    assert said == ["scaffold: round 1 of 3", "scaffold: round 3 of 3, personal accuracy 50.0%"]
