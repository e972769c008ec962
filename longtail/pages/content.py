"""What Python hands to a template: tables and plots as plain data, without any HTML."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what it shows.
        value: the number that the table is sorted by; None sorts by the text.
        note: shown behind the text, small and gray.
        tip: shown when the pointer rests on the cell.
        dot: the color of a dot in front of the text; "" for none.
        css: the CSS class, such as "best".
    """

    text: str
    value: float | None = None
    note: str = ""
    tip: str = ""
    dot: str = ""
    css: str = ""


@dataclass(frozen=True)
class Table:
    """A table with one line of headings."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Figure:
    """A plot from `longtail.pages.svg`, and the line below it."""

    svg: Markup
    caption: str
