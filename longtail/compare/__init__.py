"""Methods compared on the same documents: run, measured, and tested for significance."""
