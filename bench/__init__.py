"""Our models and their peers on the very same rows: `python -m bench`."""
