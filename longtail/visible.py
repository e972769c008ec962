"""What others wrote, made safe to show: characters that one cannot see are spelled out.

A label, a file name or a text may hold characters that steer a terminal, turn the order of what
is read, break a line, or are not seen at all. Everything that is shown to people goes through
`visible`, at the door: `cli/terminal.py` for terminals, `pages/` for HTML and SVG. What other
programs read (JSON, CSV, models) stays exact.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from html import escape
from unicodedata import category

# Control, format (directions of writing, zero width), half of a pair; ends of lines and paragraphs.
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def spell_count(n: int, noun: str) -> str:
    """Return how many there are, such as "1 document" or "2,000 documents"."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def is_hidden(char: str) -> bool:
    """Whether a reader cannot see the character, or what it does to others."""
    no_character = ord(char) & 0xFFFE == 0xFFFE  # the last two of each plane, which XML refuses
    return no_character or category(char) in HIDDEN


class _Spelling(dict[int, str]):
    """How each character is shown, for str.translate; found when it first occurs."""

    def __init__(self, escape: Callable[[str], str], kept: str = "") -> None:
        super().__init__({ord(char): char for char in kept})
        self._escape = escape

    def __missing__(self, code: int) -> str:
        """Remember and return the spelling of a character."""
        char = chr(code)
        self[code] = self._escape(char) if is_hidden(char) else char
        return self[code]


def _as_python(char: str) -> str:
    return char.encode("unicode_escape").decode()


_LINE = _Spelling(_as_python)
_LINES = _Spelling(_as_python, kept="\n\t")
_JSON = _Spelling(lambda char: json.dumps(char)[1:-1], kept="\n")  # "\n" is in indents only


def visible(text: str) -> str:
    r"""Return `text` in one line, its hidden characters as Python spells them: \x1b, \u202e."""
    return text if text.isprintable() else text.translate(_LINE)


def visible_lines(text: str) -> str:
    """Do so where ends of lines, and tabs, are nothing but white space, as in a page."""
    return text if text.isprintable() else text.replace("\r\n", "\n").translate(_LINES)


def as_json(value: object, indent: int | None = None) -> str:
    """Return `value` as JSON that reads back exactly and does a terminal no harm."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text if text.isprintable() else text.translate(_JSON)


def html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a small table, as notebooks show it; what it holds is text and never markup."""

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f'<{tag} style="text-align: left">{escape(visible(value))}</{tag}>' for value in values
        )

    head = f"<thead><tr>{cells('th', headings)}</tr></thead>" if any(headings) else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<div><p>{escape(visible(title))}</p><table>{head}<tbody>{body}</tbody></table></div>"
