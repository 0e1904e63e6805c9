"""What a user sees when something is wrong: one plain sentence and an exit code."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedkinError(Exception):
    """A mistake the user can mend. The message is one sentence: what, where, what to do."""

    exit_code = 2


class DivergedError(FedkinError):
    """Training produced numbers that are not finite."""

    exit_code = 3


def unknown(kind: str, name: object, options: Iterable[str]) -> FedkinError:
    """`unknown method 'pfedm' (did you mean 'pfedme'?)`, or the list when nothing is near."""
    names = sorted(options)
    near = get_close_matches(str(name).lower(), names, n=1, cutoff=0.6)
    hint = f"did you mean '{near[0]}'?" if near else f"choose from: {', '.join(names)}"
    return FedkinError(f"unknown {kind} '{name}' ({hint})")
