"""A figure that is drawn once and shown in light and dark, as SVG, PNG and numbers."""

from __future__ import annotations

import html
import io
import re
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import PercentFormatter

from fedkin.errors import visible
from fedkin.runs.measures import Measure
from fedkin.runs.names import cut
from fedkin.runs.plots import Picture

# Figures are drawn in the light colours; in the page each becomes a CSS variable, which has
# another value in dark mode. So no colour may stand for two things.
INK, MUTED, GRID = "#1b1f24", "#57606a", "#d5dbe1"
SERIES = ("#0b69c7", "#c9510c", "#1a7f37", "#7d3fc2", "#c4243a", "#0a7d84", "#8a6a00", "#b0288c")
GOOD, BAD = SERIES[2], SERIES[4]
LIGHT = {"ink": INK, "muted": MUTED, "grid": GRID} | {f"s{i}": c for i, c in enumerate(SERIES)}
DARK = {"ink": "#e6edf3", "muted": "#9aa7b4", "grid": "#30373f"} | {
    f"s{i}": colour
    for i, colour in enumerate(
        ("#5aa9ff", "#ff9b5e", "#57c773", "#b98cff", "#ff7b8a", "#45c4cc", "#e0b93f", "#f07fce")
    )
}
# Areas are the same in both: of middle brightness, or fading into what is behind them.
KINDS = ("#3b82d6", "#e0803a", "#3fa55a", "#9a6bd8", "#d8576b", "#2fa5ad", "#b8942b", "#cf5fae",
         "#7f8b97", "#8c6a4f")  # fmt: skip
FADING = LinearSegmentedColormap.from_list("fading", [(0.18, 0.5, 0.9, 0.0), (0.18, 0.5, 0.9, 1.0)])
LONGEST_LABEL = 130  # letters of a name in a figure
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))

STYLE: Any = {
    "font.size": 11, "axes.titlesize": 11, "axes.labelsize": 11, "legend.fontsize": 10,
    "xtick.labelsize": 10, "ytick.labelsize": 10, "lines.linewidth": 2, "svg.fonttype": "none",
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8, "grid.color": GRID, "grid.linewidth": 0.8, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "text.parse_math": False, "figure.facecolor": "white", "axes.facecolor": "none",
    "savefig.facecolor": "auto",
}  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """A figure, its name for files, its title, what it shows in words, and its numbers."""

    name: str
    title: str
    words: str
    figure: Figure
    numbers: pd.DataFrame

    def save(self, folder: Path) -> None:
        """Write it as PNG, SVG and csv."""
        plain_texts(self.figure)
        (folder / f"{self.name}.svg").write_text(self.svg, encoding="utf-8")
        with matplotlib.rc_context(STYLE), any_script():
            self.figure.savefig(folder / f"{self.name}.png", dpi=160)
        self.numbers.to_csv(folder / f"{self.name}.csv", index=False)

    @cached_property
    def svg(self) -> str:
        """A picture of its own, in light colours."""
        text = io.StringIO()
        plain_texts(self.figure)
        with matplotlib.rc_context({**STYLE, "svg.hashsalt": self.name}), any_script():
            self.figure.draw_without_rendering()
            self.figure.set_layout_engine("none")  # it is laid out: no need to do so every time
            self.figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        return text.getvalue()

    def inline(self) -> str:
        """SVG to stand in a page: its colours are the page's, its text alternative is read out."""
        svg = self.svg[self.svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.name}-", svg)
        for variable, colour in LIGHT.items():
            svg = svg.replace(colour, f"var(--{variable})")
        head, _, body = svg.partition(">")
        head = re.sub(r' (width|height)="[^"]*"', "", head)
        label = f"{self.name}-title {self.name}-words"
        shown, said = cut(visible(self.title), 300), cut(visible(self.words), 5000)
        title = f'<title id="{self.name}-title">{html.escape(shown)}</title>'
        words = f'<desc id="{self.name}-words">{html.escape(said)}</desc>'
        return f'{head} role="img" aria-labelledby="{label}">{title}{words}{body}'


@contextmanager
def any_script() -> Iterator[None]:
    """Names in any script: the page's fonts draw letters that matplotlib's own font lacks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def plain_texts(figure: Figure) -> None:
    """Let all text of a figure be just that: no formulas between dollar signs, nothing hidden."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        shown = cut(visible(text.get_text()), LONGEST_LABEL)
        if shown != text.get_text():
            text.set_text(shown)


def canvas(height: float = 3.2, width: float = 4.3) -> tuple[Figure, Axes]:
    """An empty figure of a phone's width in the common style."""
    with matplotlib.rc_context(STYLE):
        figure = Picture(figsize=(width, height), layout="constrained")
        return figure, figure.subplots()


def series_style(number: int) -> dict[str, Any]:
    """A colour, and a dash that changes when the colours come round again."""
    dash = DASHES[number // len(SERIES) % len(DASHES)]
    return {"color": SERIES[number % len(SERIES)], "linestyle": dash}


def score_axis(axes: Axes, score: Measure) -> None:
    """Personal scores upwards: shares in percent."""
    axes.grid(axis="y")
    axes.set_ylabel(f"personal {score.title}")
    if score.share:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def wrapped(label: str, width: int = 44) -> str:
    """A label on as many lines as a narrow figure needs."""
    return "\n".join(textwrap.wrap(cut(visible(label), LONGEST_LABEL), width))


def legend_below(axes: Axes, columns: int = 2) -> None:
    """The legend under the axes, where it hides nothing."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    handles, labels = axes.get_legend_handles_labels()
    labels = [wrapped(label) for label in labels]
    widest = max((len(label) for label in labels), default=0)
    columns = 1 if widest > 20 else min(columns, len(labels))
    with matplotlib.rc_context(STYLE):
        figure.legend(handles, labels, loc="outside lower center", ncols=max(1, columns))
