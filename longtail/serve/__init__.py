"""Serving: model folders as an HTTP interface, a page for people, and what they correct."""
