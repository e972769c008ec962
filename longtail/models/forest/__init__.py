"""Random trees over feature rows."""
