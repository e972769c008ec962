"""Fusion: several models, stacked."""
