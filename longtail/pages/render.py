"""`render` fills a template; whatever data, labels and texts hold is escaped.

A page loads nothing from outside, and its security policy allows one script only: sort.js, by its
hash. So even a mistake in a template could not make a text of the data run.
"""

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **context: Any) -> str:
    """Return the page that `template` makes of `context`."""
    return _environment().get_template(template).render(context)


@cache
def _environment() -> Environment:
    script = (TEMPLATES / "sort.js").read_text(encoding="utf-8")
    digest = hashlib.sha256(script.encode()).digest()
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # The browser hashes every character between the tags, so the script is inserted unchanged.
    environment.globals["script"] = Markup(script)
    environment.globals["script_hash"] = base64.b64encode(digest).decode()
    environment.filters["thousands"] = lambda number: f"{number:,}"
    return environment
