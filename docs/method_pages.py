"""A page for every method: what its class says, and what people wrote about it.

The class gives its one-line description, its settings with their meaning and default, and
its docstring. `methods/notes/NAME.md` gives the rest, under the headings in SECTIONS.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from fedkin.command.template import meaning
from fedkin.methods.base import Method
from fedkin.methods.registry import all_methods
from fedkin.papers.index import PAPERS
from fedkin.papers.presentation import markdown_table
from fedkin.papers.results import Result, read_results
from fedkin.runs.validation import options_model

# what a note must have, in the order in which a page shows it
SECTIONS = (
    "Rule", "Paper", "When to use it", "When not to use it", "What it records",
    "What travels and what stays", "Differences from the paper",
)  # fmt: skip
# a note may add or change symbols with lines such as `lam: \lambda` under this heading
SYMBOLS = "Symbols"
MOST_ROWS = 12
# settings that have the same symbol in most methods
COMMON = {
    "lr": r"\eta", "local_steps": "K", "lam": r"\lambda", "mu": r"\mu", "rho": r"\rho",
    "beta": r"\beta", "alpha": r"\alpha", "server_lr": r"\eta_s", "rates": "r_i",
    "gamma": r"\gamma", "eta": r"\eta", "p_w": "p_w", "L_w": "L_w", "L_beta": r"L_\beta",
}  # fmt: skip
HEAD = """# Methods

Every method by its name on the command line. `fedkin run NAME` runs it, `fedkin config NAME`
prints all its settings.

In the formulas, $x$ is the global model, $v_i$ or $\\theta_i$ is client $i$'s own model,
$f_i$ is the loss on its training data, $g_i$ a gradient of $f_i$ on a minibatch, $S$ the
clients that take part in a round, $N$ the number of all clients, $n_i$ the number of client
$i$'s samples and $K$ the number of local steps. An arrow means "becomes".
"""


def write(folder: Path) -> None:
    """Write a page per method and the page that lists them."""
    methods, results = all_methods(), read_results(folder.parent / "reproduction")
    folder.mkdir(exist_ok=True)
    for name, cls in methods.items():
        _save(folder / f"{name}.md", page(name, cls, note(folder / "notes", name), results))
    rows = [f"| [{name}]({name}.md) | {_first_line(cls)} |" for name, cls in methods.items()]
    table = ["| name | what it is |", "|---|---|", *rows]
    toc = ["```{toctree}", ":hidden:", "", *methods, "```"]
    _save(folder / "index.md", "\n".join([HEAD, *table, "", *toc, ""]))


def note(folder: Path, name: str) -> dict[str, str]:
    """What people wrote about a method, by heading; nothing where there is no file."""
    path = folder / f"{name}.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    return {head.strip(): body.strip() for head, body in zip(parts[::2], parts[1::2], strict=True)}


def page(
    name: str, cls: type[Method], told: dict[str, str], results: Sequence[Result] = ()
) -> str:
    """A method's whole page."""
    lines = [f"# {name}", "", _first_line(cls), "", "```", f"fedkin run {name}", "```", ""]
    for heading in SECTIONS:
        if heading == "What it records":
            lines += ["## Settings", "", *_settings(cls, symbols(told)), ""]
        if heading in told:
            lines += [f"## {heading}", "", told[heading], ""]
    lines += ["## Results", "", *_results(name, results), ""]
    box = inspect.cleandoc(cls.__doc__ or "")
    lines += ["## In the code", "", f"`{cls.__module__}.{cls.__name__}` says:", ""]
    lines += ["```text", box, "```", ""]
    return "\n".join(lines)


def symbols(told: dict[str, str]) -> dict[str, str]:
    """The symbol of each setting that has one."""
    own = re.findall(r"^(\w+): *(.+)$", told.get(SYMBOLS, ""), flags=re.MULTILINE)
    return {**COMMON, **dict(own)}


def _first_line(cls: type[Method]) -> str:
    return inspect.cleandoc(cls.__doc__ or "").partition("\n")[0]


def _settings(cls: type[Method], known: dict[str, str]) -> list[str]:
    columns = options_model(cls).model_fields
    if not fields(cls):
        return ["It has none of its own."]
    rows = ["| setting | symbol | meaning | default |", "|---|---|---|---|"]
    for field in fields(cls):
        column = columns[field.name]
        symbol = f"${known[field.name]}$" if field.name in known else ""
        words = (column.description or meaning(column)).replace("|", r"\|")
        default = column.get_default(call_default_factory=True)
        shown = "none" if default is None else f"`{default}`"
        rows.append(f"| `{field.name}` | {symbol} | {words} | {shown} |")
    return rows


def _results(name: str, results: Sequence[Result]) -> list[str]:
    """What the reproductions found with this method: one line for every panel, linked."""
    rows = []
    for result in _largest(results):
        item = next(item for item in PAPERS[result.paper] if item.name == result.item)
        labels = {line.label for panel in item.panels for line in panel.lines
                  if line.method == name}  # fmt: skip
        for row in result.rows:
            if row["line"] in labels:
                measures = [key for key in row if key not in ("line", "panel")]
                ours = next(key for key in measures if not key.startswith("paper: "))
                place = f"[{result.paper}, {result.item}](../reproduction/{result.paper}.md)"
                rows.append({
                    "where": place, "scale": result.scale, "line": row["line"],
                    "data": row.get("panel", result.title), "what": ours, "ours": row[ours],
                    "paper": row.get(f"paper: {ours}", "—"),
                })  # fmt: skip
    if not rows:
        return ["No paper that is reproduced here runs it."]
    told = ["Mean over seeds, ± half of the 95 % interval."]
    if len(rows) > MOST_ROWS:
        told[0] += f" These are the first {MOST_ROWS} of {len(rows)} lines; the links lead to all."
    return [*told, "", *markdown_table(rows[:MOST_ROWS])]


def _largest(results: Sequence[Result]) -> list[Result]:
    """Of every item the results at the largest scale."""
    papers = {result.key[:2] for result in results if result.scale == "paper"}
    return [r for r in results if r.scale == "paper" or r.key[:2] not in papers]


def _save(path: Path, text: str) -> None:
    """Unchanged pages keep their time, so that Sphinx does not read them again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
