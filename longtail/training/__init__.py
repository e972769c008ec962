"""The one training loop, for every model that torch trains."""
