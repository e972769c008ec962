"""The command line: one file for each command, all joined in `app.py`.

Commands import numpy, scipy, numba and rich inside their functions, so that `longtail --help`
answers in a blink.
"""

from longtail.cli.app import app, main

__all__ = ["app", "main"]
