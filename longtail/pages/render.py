"""`render` fills a template; whatever data, labels and texts hold is escaped and made visible.

A page loads nothing from outside, and its security policy allows one style and one script only,
style.css and sort.js, by their hashes. So even a mistake in a template could not make a text of the
data run, or hide the rest of the page.
"""

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from longtail.visible import visible_lines

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, *, rules: str = "", **context: Any) -> str:
    """Return the page that `template` makes of `context`; `rules` are CSS of ours for it alone."""
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8") + rules
    script = (TEMPLATES / "sort.js").read_text(encoding="utf-8")
    return (
        _environment()
        .get_template(template)
        .render(
            context,
            # The browser hashes every character between the tags, so both are inserted unchanged.
            style=Markup(style),
            style_hash=_hash(style),
            script=Markup(script),
            script_hash=_hash(script),
        )
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_show,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["thousands"] = lambda number: f"{number:,}"
    return environment


def _show(value: Any) -> Any:
    """Spell out hidden characters of every text that a template inserts, but for our own HTML."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible_lines(value)
    return value
