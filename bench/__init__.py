"""Our models and the peers on the same rows: `python -m bench`; and the studies of each model."""
