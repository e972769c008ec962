"""Extremely randomized trees over feature rows."""
