"""How Sphinx builds the documentation: `make docs`."""

import sys
from pathlib import Path

from longtail.version import __version__

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "longtail"
author = "The longtail authors"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "parameter_tables",
    "data_tables",
    "command_tables",
    "notebooks",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"longtail {version}"

myst_heading_anchors = 3
default_role = "code"  # our docstrings mark code by single backticks

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Types in signatures that have no entry here: those of other packages, as the build reads nothing
# from the network, and those of ours that a user never makes.
nitpick_ignore_regex = [
    ("py:.*", r"(numpy|np|scipy|sp|pa|collections|pathlib|typing)\..*"),
    ("py:class", r"longtail\.(data|evaluation\.metrics|runtime\.settings)\..*"),
]
