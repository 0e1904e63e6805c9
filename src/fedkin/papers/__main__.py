"""`python -m fedkin.papers NAME ITEM --seeds K` repeats a table; without names it lists them."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.progress import Progress
from rich.table import Table

from fedkin.errors import FedkinError, unknown
from fedkin.papers import PAPERS, Recipe
from fedkin.papers.reproduce import reproduce, shown
from fedkin.screen import console


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fedkin.papers", description=__doc__)
    parser.add_argument("name", nargs="?", help="the paper")
    parser.add_argument("item", nargs="?", help="which of its tables")
    parser.add_argument("--seeds", type=int, default=5, help="repeats with different seeds")
    parser.add_argument("--rounds", type=int, help="other than the paper's, for a trial")
    parser.add_argument("--out", type=Path, default=Path("runs/papers"), help="parent folder")
    given = parser.parse_args()
    try:
        if given.item is None:
            show_list(given.name)
            return
        recipe = find(given.name, given.item)
    except FedkinError as error:
        parser.error(str(error))
    changes = {} if given.rounds is None else {"rounds": given.rounds}
    rounds = given.rounds or recipe.run["rounds"]
    trial = f"-{rounds}-rounds" if given.rounds else ""
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(recipe.title, total=len(recipe.lines) * given.seeds * rounds)
        outcomes = reproduce(
            recipe,
            given.out / given.name / (given.item + trial),
            given.seeds,
            lambda _: bar.advance(task),
            **changes,
        )
    table = Table(title=f"{recipe.title}: accuracy in %, {given.seeds} seeds, {rounds} rounds")
    for title in ("method", "printed", "personal models", "global model"):
        table.add_column(title, justify="left" if title == "method" else "right")
    for o in outcomes:
        printed = "-" if o.printed is None else f"{o.printed:.2f}"
        table.add_row(o.label, printed, shown(o.accuracy["personal"]), shown(o.accuracy["global"]))
    console.print(table)
    console.print(f"printed are {recipe.judged} models. {recipe.chosen}")


def find(name: str, item: str) -> Recipe:
    if name not in PAPERS:
        raise unknown("paper", name, PAPERS)
    if item not in PAPERS[name]:
        raise unknown(f"table of {name}", item, PAPERS[name])
    return PAPERS[name][item]


def show_list(name: str | None) -> None:
    if name is not None and name not in PAPERS:
        raise unknown("paper", name, PAPERS)
    for paper in PAPERS if name is None else [name]:
        for item, recipe in PAPERS[paper].items():
            console.print(f"{paper} {item}: {', '.join(line.label for line in recipe.lines)}")


if __name__ == "__main__":
    main()
