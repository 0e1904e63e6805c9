"""Formulas as MathML, which browsers show by themselves: no script, no network, no LaTeX."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def setup(app: Any) -> None:
    """Offer the renderer to Sphinx under the name `mathml`."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))


def inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def block(writer: Any, node: nodes.math_block) -> None:
    """One formula; lines that end in a double backslash are aligned at &."""
    text = node.astext()
    if r"\\" in text and r"\begin" not in text:
        text = rf"\begin{{align*}}{text}\end{{align*}}"
    writer.body.append(f'<div class="formula">{tex2mathml(text, as_block=True)}</div>\n')
    raise nodes.SkipNode
