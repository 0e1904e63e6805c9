"""Advice as files: a page, json, csv, and a config that `fedkin run` and `fedkin serve` take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from fedkin.data.columns import CategoryColumn, NumberColumn
from fedkin.errors import FedkinError
from fedkin.reports import page as html
from fedkin.reports.advice_figures import drawings
from fedkin.reports.advice_words import SECTIONS, site_row
from fedkin.reports.tables import as_html
from fedkin.runs.advice_answer import Advice
from fedkin.runs.advice_scores import Gain
from fedkin.runs.config import make_config
from fedkin.runs.names import cut
from fedkin.runs.provenance import versions
from fedkin.tensors import write_text
from fedkin.toml import to_toml

MOST_NOTES, MOST_OPEN, MOST_ROWS = 100, 25, 1000
PAGE, NUMBERS, SITES, CONFIG = "advice.html", "advice.json", "sites.csv", "config.toml"


class Advised:
    """Advice in Python: `decision`, `table`, `words`, `config`, `save(folder)`, `plot()`."""

    def __init__(self, advice: Advice) -> None:
        self.advice = advice

    @property
    def decision(self) -> str:
        """alone, one (one model for all), groups or personal."""
        return self.advice.decision

    @property
    def table(self) -> pd.DataFrame:
        """One row per site, in numbers."""
        return site_table(self.advice)

    @property
    def words(self) -> dict[str, list[str]]:
        """The answers in sentences, by question."""
        return {title: list(say(self.advice)) for title, say in SECTIONS.items()}

    @property
    def config(self) -> str:
        """The recommended run as a config file."""
        return recommended_config(self.advice)

    def plot(self) -> Any:
        """What each site gains."""
        return drawings(self.advice)[0].figure

    def save(self, folder: str | Path) -> Path:
        """Write page, json, csv and config into a folder; gives the page."""
        return write_advice(self.advice, Path(folder))

    def __repr__(self) -> str:
        lines = []
        for title, sentences in self.words.items():
            lines += [title, *(f"  {sentence}" for sentence in sentences)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts = []
        for title, sentences in self.words.items():
            said = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
            parts.append(f"<h4>{escape(title)}</h4><ul>{said}</ul>")
        rows = [site_row(site, self.advice.measure) for site in self.advice.sites[:20]]
        return "".join(parts) + str(pd.DataFrame(rows).to_html(index=False, escape=True))


def write_advice(advice: Advice, folder: Path) -> Path:
    """Write everything into a folder, which may not hold advice yet; gives the page."""
    if (folder / PAGE).exists():
        raise FedkinError(f"{folder} already holds advice: choose another --out")
    figures = folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    drawn = drawings(advice)
    for drawing in drawn:
        drawing.save(figures)
    write_text(folder / NUMBERS, json.dumps(in_numbers(advice), indent=1, allow_nan=False) + "\n")
    write_text(folder / SITES, site_table(advice).to_csv(index=False))
    write_text(folder / CONFIG, recommended_config(advice))
    write_text(folder / PAGE, document(advice, drawn, folder))
    return folder / PAGE


# numbers -----------------------------------------------------------------------------------


def site_table(advice: Advice) -> pd.DataFrame:
    """A row per site with full precision."""
    rows = []
    for site in advice.sites:
        gain = site.gain or Gain(float("nan"), None, None)
        rows.append(
            {
                "site": site.name, "rows": site.rows, "trivial": site.trivial, "alone": site.alone,
                "together": site.together, "gain": gain.mean, "low": gain.low, "high": gain.high,
                "own_gain": site.own_gain and site.own_gain.mean, "verdict": site.verdict,
                "group": site.group, "gives": site.gives,
                "learns_from": "; ".join(name for name, _, _ in site.learns_from),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def in_numbers(advice: Advice) -> dict[str, Any]:
    """Everything as json can carry it; what is not known is null."""
    kin = advice.kin
    found = {
        "decision": advice.decision,
        "metric": advice.measure.name,
        "gain": advice.gain and asdict(advice.gain),
        "spread_of_gains": advice.spread and asdict(advice.spread),
        "counts": {key: advice.count(key) for key in ("gains", "same", "loses", "unknown")},
        "recommended": {
            "method": advice.method, "options": dict(advice.options), "model": advice.model,
            "rounds": advice.rounds, "megabytes_per_site": advice.megabytes,
        },
        "sites": [
            {**asdict(site), "verdict": site.verdict,
             "learns_from": [{"site": n, "weight": w, "share_of_splits": s}
                             for n, w, s in site.learns_from]}
            for site in advice.sites
        ],
        "ways": [asdict(way) for way in advice.ways],
        "groups": [[advice.sites[i].name for i in g] for g in kin.groups] if kin else [],
        "agreement": kin.agreement if kin else None,
        "contributions": {name: asdict(gain) for name, gain in advice.contributions.items()},
        "effort": asdict(advice.effort),
        "trials": advice.tried,
        "diverged": advice.diverged,
        "words": {title: say(advice) for title, say in SECTIONS.items()},
        "made_with": versions(),
    }  # fmt: skip
    plain: dict[str, Any] = _finite(found)
    return plain


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


# the config --------------------------------------------------------------------------------


def recommended_config(advice: Advice) -> str:
    """The recommended run: complete, with a [sites] table where the data are a table."""
    data = advice.data
    values: dict[str, Any] = {
        "method": advice.method,
        "rounds": advice.rounds,
        "options": dict(advice.options),
        "model": {"name": advice.model},
    }
    if data is not None:
        full = data.resolved()
        places = {"path": str(Path(data.path).resolve())} if data.path else {}
        values["data"] = full.model_copy(update=places).model_dump(exclude_none=True)
    config = make_config(values, "the advice")
    complete = config.model_dump()
    complete["options"] = asdict(config.make_method())
    if data is None:  # arrays: they are known only where they were given
        complete.pop("data")
    sites = sites_table(advice)
    return to_toml({**complete, **({"sites": sites} if sites else {}), "made_with": versions()})


def sites_table(advice: Advice) -> dict[str, Any]:
    """What sites must agree on before they can train where their data are: `[sites]`."""
    example = advice.example
    columns = example.preparation.columns
    if columns is None:
        return {}
    known = [c for c in columns if isinstance(c, NumberColumn | CategoryColumn)]
    numbers = [c for c in known if isinstance(c, NumberColumn)]
    found: dict[str, Any] = {
        "features": [column.name for column in known],
        "categories": {c.name: list(c.values) for c in known if isinstance(c, CategoryColumn)},
        "scale": {c.name: [c.mean, c.deviation] for c in numbers},
    }
    target = example.preparation.target
    if target is not None and advice.data is not None and advice.data.target_column:
        found["scale"][advice.data.target_column] = list(target)
    if example.num_classes is not None:
        found["classes"] = list(example.class_names) or example.num_classes
    return found


# the page ----------------------------------------------------------------------------------


def document(advice: Advice, drawn: list[Any], folder: Path) -> str:
    """First the answer, then a row per site, then the figures and the rest."""
    source = Path(advice.data.path).name if advice.data and advice.data.path else (
        advice.data.name if advice.data else "your data"
    )  # fmt: skip
    first, *others = SECTIONS.items()
    rows = [site_row(site, advice.measure) for site in advice.sites]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    rows = [{key: row.get(key, "—") for key in keys} for row in rows]
    caption = (
        f"Every site on its own test rows, means over {advice.effort.splits} splits. Alone and "
        f"together: {advice.measure.title}; no model: the same for the answer that needs none (the "
        "commonest class or the mean of the training rows)."
    )
    sections = [
        html.box("verdict", first[1](advice)),
        html.section("Site by site", *_site_tables(rows, caption)),
        html.section("In pictures", html.figures(drawn)),
        *(
            html.section(title, *(html.paragraph(sentence) for sentence in say(advice)))
            for title, say in others
        ),
    ]
    if advice.notes:
        shown = [cut(note, 200) for note in advice.notes[:MOST_NOTES]]
        sections.append(
            html.card(html.folded("Notes on the data", "".join(map(html.paragraph, shown))))
        )
    commands = (
        f"fedkin run {folder / CONFIG}      # here, with all rows\n"
        f"fedkin serve {folder / CONFIG} --clients {len(advice.sites)}   # where the data are"
    )
    text = recommended_config(advice)
    sections.append(
        html.section(
            "Do it",
            html.verbatim(commands),
            html.card(html.folded(CONFIG, html.verbatim(text))),
        )
    )
    facts = [
        f"data: {source}",
        f"{len(advice.sites)} sites",
        f"{sum(site.rows for site in advice.sites):,} rows",
        f"{advice.effort.splits} splits",
    ]
    made = f"Made by fedkin {versions()['fedkin']}. In numbers: {NUMBERS}, {SITES}, figures/."
    return html.page(f"Should these {len(advice.sites)} sites collaborate?", facts, sections, made)


def _site_tables(rows: list[dict[str, str]], caption: str) -> list[str]:
    """A table with a row per site; where there are many the rest opens when asked for."""
    first, rest = rows[:MOST_OPEN], rows[MOST_OPEN:MOST_ROWS]
    found = [html.card(as_html(first, caption))]
    if len(rows) > MOST_ROWS:
        left = len(rows) - MOST_ROWS
        caption = f"{caption} The last {left} sites are in {SITES} alone."
    if rest:
        found.append(html.card(html.folded(f"{len(rest)} more sites", as_html(rest, caption))))
    return found
