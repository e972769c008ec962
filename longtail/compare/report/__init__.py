"""A comparison as one page that needs nothing but itself."""
