"""One page of HTML that needs nothing but itself: no network, no other file.

Texts and label names come from whoever wrote the data, so everything is escaped, and the page's
own security policy lets no script run but the one it was written with, and loads nothing.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from longtail.compare.report.style import CSS, SCRIPT
from longtail.compare.report.svg import colour

Results = Mapping[str, Any]


class Cell(NamedTuple):
    """A cell of a table: what it shows, as HTML, and the number it is sorted by."""

    html: str
    value: float | None = None
    kind: str = ""


class Section(NamedTuple):
    """A part of the page; `body` is HTML."""

    anchor: str
    title: str
    body: str


def write_page(results: Results) -> str:
    """Return the report of a comparison."""
    from longtail.compare.report.sections import SECTIONS, write_head

    sections = [section for write in SECTIONS if (section := write(results)) is not None]
    links = "".join(f'<a href="#{each.anchor}">{escape(each.title)}</a>' for each in sections)
    body = "".join(
        f'<section id="{each.anchor}"><h2>{escape(each.title)}</h2>{each.body}</section>'
        for each in sections
    )
    return build_page(
        f"{results['data']['name']}: a comparison", f"{write_head(results)}<nav>{links}</nav>{body}"
    )


def build_page(title: str, body: str) -> str:
    """Put HTML into a page with our style and the script that sorts tables."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n{body}\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], kind: str = "sortable") -> str:
    """Return a table that scrolls by itself where it is too wide.

    `kind` is "sortable", "matrix", or "text" for cells that are no numbers.
    """
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    value = "" if cell.value is None else f' data-v="{cell.value:.6g}"'
    kind = f' class="{cell.kind}"' if cell.kind else ""
    return f"<td{value}{kind}>{cell.html}</td>"


def method_cell(name: str, number: int) -> Cell:
    """Return a method's name with its colour."""
    dot = f'<span class="dot" style="background:{colour(number)}"></span>'
    return Cell(f"{dot}{escape(name)}")


def figure(svg: str, caption: str) -> str:
    """Return a plot with its caption."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def plots(figures: Iterable[str]) -> str:
    """Return plots side by side, or one below the other where there is no room."""
    return f'<div class="plots">{"".join(figures)}</div>'


def details(summary: str, body: str) -> str:
    """Return HTML that is shown on a click."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def paragraph(text: str, kind: str = "") -> str:
    """Return a text as a paragraph."""
    return f"<p{f' class={kind!r}' if kind else ''}>{escape(text)}</p>"


def bullets(texts: Iterable[str]) -> str:
    """Return texts as a list."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
