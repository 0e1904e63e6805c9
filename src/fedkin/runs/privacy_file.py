"""privacy.json: what a run folder says about differential privacy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedkin.runs.contents import PRIVACY
from fedkin.runs.reading import read_json

FILE = "privacy.json"


def read_privacy(folder: Path) -> dict[str, Any] | None:
    """What a run folder says about privacy; None where it says nothing."""
    try:
        return read_json(folder / FILE, PRIVACY).model_dump(exclude_unset=True)
    except FileNotFoundError:
        return None


def ended_by_budget(folder: Path) -> bool:
    """Whether a run has ended because its privacy budget was spent."""
    told = read_privacy(folder)
    return told is not None and told.get("budget_spent") is True


def guarantee_in_words(facts: dict[str, Any]) -> str:
    """The guarantee in one sentence."""
    spent = facts.get("epsilon")
    if spent is None:
        return "Answers were clipped but no noise was added: there is no privacy guarantee."
    if facts.get("cohort") is not None:
        imitated = f" for a cohort of {facts['cohort']:g} clients, which this run imitates"
    else:
        imitated = ""
    return (
        f"Epsilon {float(spent):.3g} at delta {float(facts['delta']):.3g}{imitated}, of what the "
        f"server releases (adjacent: {facts['adjacency']}); noise multiplier "
        f"{float(facts['noise_multiplier']):.3g}, sampling: {facts['sampling']}."
    )
