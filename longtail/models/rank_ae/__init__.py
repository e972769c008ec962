"""Rank-AE (Wang et al., NAACL 2019)."""
