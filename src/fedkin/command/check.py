"""`fedkin check METHOD`: whether a method keeps what all methods promise."""

from __future__ import annotations

from rich.markup import escape

from fedkin.command.screen import console
from fedkin.methods.registry import get_method
from fedkin.runs.checks import check_all
from fedkin.runs.user_code import known_method


def check(name: str) -> None:
    """Run the checks, a line each; exit code 1 if one fails."""
    cls = get_method(known_method(name))
    broken = 0
    for outcome in check_all(cls):
        broken += bool(outcome.problem)
        mark = "[red]FAILS[/]" if outcome.problem else "[green]ok[/]   "
        console.print(f"{mark} {escape(outcome.promise)}", highlight=False, soft_wrap=True)
        if outcome.problem:
            console.print(f"      {escape(outcome.problem)}", highlight=False, soft_wrap=True)
    if broken:
        console.print(f"{escape(cls.name)} breaks {broken} of its promises")
        raise SystemExit(1)
    console.print(f"{escape(cls.name)} keeps all its promises")
