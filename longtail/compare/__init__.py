"""Methods side by side on the same documents: run, measured, and told apart from chance."""
