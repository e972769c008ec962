"""Nearest vectors and nearest documents, and the labels that these vote for."""
