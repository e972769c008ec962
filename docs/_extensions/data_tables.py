"""Tables of what is read and how, as `longtail data formats --json -` lists it.

    ```{data} Options
    ```

shows one of its lists by its title. A title that does not exist is an error.
"""

import json
import subprocess
import sys
from functools import cache

from docutils import nodes
from parameter_tables import build_table
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


@cache
def read_lists() -> dict[str, dict[str, str]]:
    """Return the lists by their titles."""
    command = [sys.executable, "-m", "longtail", "data", "formats", "--json", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    lists: dict[str, dict[str, str]] = json.loads(done.stdout)
    return lists


class DataTable(SphinxDirective):
    """`{data} TITLE`: a table of names and meanings."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        if self.arguments[0] not in read_lists():
            raise self.error(f"there is no list '{self.arguments[0]}'")
        rows = list(read_lists()[self.arguments[0]].items())
        return [build_table(("name", "meaning"), (25, 75), rows)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("data", DataTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
