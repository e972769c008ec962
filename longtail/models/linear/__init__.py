"""Linear: a tree of linear classifiers."""
