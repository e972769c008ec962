"""HTML pages that need no other file: Jinja2 templates, their tables and plots."""
