"""Other programs that longtail works with."""
