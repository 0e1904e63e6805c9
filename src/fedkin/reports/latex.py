"""The table of results for a paper written in LaTeX."""

from __future__ import annotations

from fedkin.reports.tables import result_rows
from fedkin.reports.words import NOTHING, SPACE
from fedkin.reports.write import Findings

SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "✓": r"$\checkmark$", SPACE: "~", NOTHING: "--",
}  # fmt: skip


def escaped(text: str) -> str:
    """Text as LaTeX prints it, whatever characters a name has."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def latex_table(found: Findings) -> str:
    """A booktabs table, the best method first.

    Bold are the best mean and those that the paired test cannot tell from it; with one seed
    nothing is, because nothing is known.
    """
    rows = result_rows(found.summaries, found.chosen, found.score)
    titles = [title for title in rows[0] if not title.startswith("best round")]
    strong = _best(found)
    lines = []
    for row, summary in zip(rows, found.summaries, strict=True):
        cells = [escaped(row[title]) for title in titles]
        if summary.label in strong:
            cells[0], cells[2] = rf"\textbf{{{cells[0]}}}", rf"\textbf{{{cells[2]}}}"
        lines.append(" & ".join(cells) + r" \\")
    head = " & ".join(escaped(title) for title in titles) + r" \\"
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}, and amssymb for check marks",
            rf"\begin{{tabular}}{{l{'r' * (len(titles) - 1)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _best(found: Findings) -> set[str]:
    top = found.summaries[0]
    if top.seeds < 2:
        return set()
    against = {
        pair.second if pair.first == top.label else pair.first: pair
        for pair in found.pairs
        if top.label in (pair.first, pair.second)
    }
    return {top.label, *(name for name, pair in against.items() if pair.p and not pair.certain)}
