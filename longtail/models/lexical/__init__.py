"""Lexical: label names found in texts."""
