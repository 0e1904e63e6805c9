"""The report as one HTML page that needs no network and no script."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from fedkin.errors import visible
from fedkin.reports.drawing import DARK, LIGHT, Drawing
from fedkin.runs.names import cut

# letters of a word, of a name or number in a table, and of a paragraph or a title that are shown
LONGEST_WORD, LONGEST_CELL, LONGEST_TEXT, LONGEST_VERBATIM = 60, 300, 5000, 50_000

CSS = """
:root { color-scheme: light dark; --page: #f4f6f8; --card: #ffffff; --line: #d5dbe1;
  --accent: #0b69c7; --note: #fff6df; %(light)s }
@media (prefers-color-scheme: dark) {
  :root { --page: #0d1117; --card: #161b22; --line: #30373f; --accent: #5aa9ff;
    --note: #2b2413; %(dark)s } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main, header, footer { max-width: 1360px; margin: 0 auto; padding: 0 clamp(12px, 3vw, 32px); }
header { padding-top: clamp(20px, 4vw, 44px); }
h1 { font-size: clamp(1.5rem, 1.1rem + 1.6vw, 2.2rem); line-height: 1.2; margin: 0 0 .3em; }
h2 { font-size: 1.3rem; margin: 2.2em 0 .6em; }
p { margin: 0 0 .7em; max-width: 75ch; }
p, li, h1, h2, caption, figcaption { overflow-wrap: anywhere; }
p, li, h1, h3, th, td, td span, dt, dd, summary, text { unicode-bidi: isolate; }
a { color: var(--accent); }
.facts { display: flex; flex-wrap: wrap; gap: .3em 1.4em; margin: 0; padding: 0; list-style: none;
  color: var(--muted); }
.verdict, .note { border-radius: 10px; padding: 14px 18px; margin: 18px 0; }
.verdict { background: var(--card); border: 1px solid var(--line);
  border-left: 5px solid var(--accent); }
.verdict p:last-child, .note p:last-child { margin-bottom: 0; }
.verdict p:first-child { font-size: 1.12rem; font-weight: 600; }
.note { background: var(--note); border: 1px solid var(--line); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.card + .card, .figures + .card { margin-top: 16px; }
.figures { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%%, 380px), 1fr)); }
.figures .card { margin: 0; }
figure { margin: 0; padding: 14px 14px 10px; display: flex; flex-direction: column; }
figure h3 { font-size: 1rem; margin: 0 0 .5em; overflow-wrap: anywhere; }
figure svg { width: 100%%; height: auto; display: block; }
figure svg text { font-family: inherit !important; }
figure svg image { image-rendering: pixelated; }
figcaption { color: var(--muted); font-size: .88rem; padding-top: 8px; }
table { width: 100%%; border-collapse: collapse; font-size: .92rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--muted); padding: 12px 14px 6px; }
th, td { padding: 8px 12px; text-align: right; border-top: 1px solid var(--line);
  vertical-align: top; }
th[scope=row], th[scope=col]:first-child { text-align: left; }
thead th { font-weight: 600; font-size: .84rem; color: var(--muted); vertical-align: bottom; }
th[scope=row] { font-weight: 600; min-width: 5.5em; overflow-wrap: break-word; }
tbody tr:hover { background: color-mix(in srgb, var(--accent) 7%%, transparent); }
pre { overflow-x: auto; background: var(--page); border: 1px solid var(--line);
  border-radius: 8px; padding: 12px; font-size: .84rem; margin: 8px 0 0; }
details { padding: 10px 14px; }
summary { cursor: pointer; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%%, 300px), 1fr));
  gap: 2px 24px; margin: 0; padding: 12px 14px; font-size: .9rem; }
dl div { display: flex; justify-content: space-between; gap: 12px;
  border-bottom: 1px dotted var(--line); }
dt { color: var(--muted); } dd { margin: 0; text-align: right; }
dt, dd, footer { overflow-wrap: anywhere; }
footer { color: var(--muted); font-size: .88rem; padding-top: 2em; padding-bottom: 3em; }
@media (max-width: 1000px) {
  table, thead, tbody, tr, caption { display: block; } thead { position: absolute;
    clip-path: inset(50%%); width: 1px; height: 1px; overflow: hidden; }
  tr { padding: 10px 14px; border-top: 1px solid var(--line); }
  th, td { border: 0; padding: 2px 0; overflow-wrap: anywhere; } td span { min-width: 0; }
  th[scope=row] { display: block; font-size: 1.02rem; padding-bottom: 4px; }
  td { display: flex; justify-content: space-between; gap: 16px; }
  td::before { content: attr(data-label); color: var(--muted); text-align: left; }
  td span { text-align: right; } td::before { min-width: 40%%; } }
@media print { body { background: none; } .card { break-inside: avoid; } }
"""


def escape(text: str, longest: int = LONGEST_TEXT) -> str:
    """Any text as HTML that shows it, and no more of it than a page can bear."""
    shown = re.sub(
        rf"\S{{{LONGEST_WORD},}}", lambda word: cut(word[0], LONGEST_WORD), visible(text)
    )
    return html.escape(cut(shown, longest), quote=True)


def page(title: str, facts: Sequence[str], sections: Sequence[str], made: str) -> str:
    """The whole document."""
    style = CSS % {
        name: " ".join(f"--{k}: {v};" for k, v in colours.items())
        for name, colours in (("light", LIGHT), ("dark", DARK))
    }
    listed = "".join(f"<li>{escape(fact, LONGEST_CELL)}</li>" for fact in facts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title, LONGEST_CELL)}</title>'
        f"<style>{style}</style></head>\n<body><header><h1>{escape(title, LONGEST_CELL)}</h1>"
        f'<ul class="facts">{listed}</ul></header>\n<main>'
        + "\n".join(sections)
        + f"</main>\n<footer>{escape(made)}</footer></body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A heading and what belongs under it."""
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def box(kind: str, sentences: Sequence[str]) -> str:
    """Sentences that stand out: a verdict or a note."""
    return f'<div class="{kind}">{"".join(paragraph(s) for s in sentences)}</div>'


def card(*parts: str) -> str:
    return f'<div class="card">{"".join(parts)}</div>'


def figures(drawings: Sequence[Drawing]) -> str:
    """Figures side by side, as many as the screen is wide."""
    return '<div class="figures">' + "".join(map(_figure, drawings)) + "</div>"


def _figure(drawing: Drawing) -> str:
    return (
        f'<figure class="card"><h3>{escape(drawing.title, LONGEST_CELL)}</h3>{drawing.inline()}'
        f"<figcaption>{escape(drawing.words)}</figcaption></figure>"
    )


def settings_list(values: dict[str, str]) -> str:
    """Names with their values."""
    items = (
        f"<div><dt>{escape(k, LONGEST_CELL)}</dt><dd>{escape(v, LONGEST_CELL)}</dd></div>"
        for k, v in values.items()
    )
    return card(f"<dl>{''.join(items)}</dl>")


def verbatim(text: str) -> str:
    shown = cut(visible(text), LONGEST_VERBATIM)
    return f'<pre tabindex="0">{html.escape(shown)}</pre>'


def folded(title: str, content: str) -> str:
    """Something long that opens when asked for."""
    return f"<details><summary>{escape(title, LONGEST_CELL)}</summary>{content}</details>"
