"""How a run shows itself: as a line, as HTML in a notebook, as a picture."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedkin.errors import visible
from fedkin.runs.measures import LOSS, Measure
from fedkin.runs.names import cut

if TYPE_CHECKING:
    from fedkin.runs.plots import Picture

# rows of a table shown in a notebook
MOST_ROWS = 12
WORDS = {"personal": "personal models", "global": "one global model", "local": "alone"}


class Shown:
    """What a run in memory and a run folder share: they show themselves in the same way."""

    metrics: Any
    clients: Any
    mixing: Any
    measures: Any

    @property
    def label(self) -> str:
        """What was trained, for titles."""
        raise NotImplementedError

    @property
    def shown_measure(self) -> Measure:
        """The first measure that is known, or the loss."""
        rows = self.metrics
        known = (m for m in self.measures if f"personal_{m}" in rows)
        return next((m for m in known if rows[f"personal_{m}"].notna().any()), LOSS)

    def __repr__(self) -> str:
        rows, name = self.metrics, type(self).__name__
        if not len(rows):
            return f"<{name} {self.label}: no round yet>"
        found = [f"{int(rows['round'].iloc[-1])} rounds"]
        if len(self.clients):
            found.insert(0, f"{self.clients['client'].nunique()} clients")
        for kind, value in _ends(rows, self.shown_measure).items():
            found.append(f"{WORDS[kind]} {_shown(value, self.shown_measure)}")
        return f"<{name} {self.label}: {', '.join(found)} ({self.shown_measure.title})>"

    def _repr_html_(self) -> str:
        title = f"<p><b>{escape(repr(self)[1:-1])}</b></p>"
        if not len(self.clients):
            return title
        last = self.last_clients()
        columns = {f"{kind}_{self.shown_measure}": words for kind, words in WORDS.items()}
        columns |= {"train_samples": "training samples", "test_samples": "test samples"}
        kept = [c for c in columns if c in last and last[c].notna().any()]
        table = last.set_index("client")[kept].rename(columns=columns)
        return title + html_table(table, len(last))

    def plot(self) -> Picture:
        """Scores over rounds, every client next to going alone and, where known, who helps whom."""
        from fedkin.runs.plots import plot_run  # here: importing matplotlib takes a second

        clients = self.last_clients() if len(self.clients) else self.clients
        return plot_run(self.label, self.metrics, clients, self.mixing, self.shown_measure, WORDS)

    def last_clients(self) -> pd.DataFrame:
        """One row per client: the last evaluation."""
        table = self.clients
        return table[table["round"] == table["round"].max()]


def html_table(table: pd.DataFrame, total: int) -> str:
    """The first rows of a table, names escaped and cut, and how many more there are."""
    shown = table.head(MOST_ROWS)
    shown.index = pd.Index([cut(visible(str(name))) for name in shown.index], name=table.index.name)
    text: str = shown.to_html(escape=True, float_format=lambda v: f"{v:.4g}", na_rep="")
    more = total - len(shown)
    return text + (f"<p>... and {more} more rows</p>" if more > 0 else "")


def _ends(rows: pd.DataFrame, score: Measure) -> dict[str, float]:
    """The last known mean of each kind of model."""
    found = {}
    for kind in WORDS:
        column = f"{kind}_{score}"
        if column in rows and rows[column].notna().any():
            found[kind] = float(rows[column].dropna().iloc[-1])
    return found


def _shown(value: float, score: Measure) -> str:
    return f"{value:.1%}" if score.share else f"{value:.4g}"
