"""DXML (Zhang et al., ICMR 2018)."""
