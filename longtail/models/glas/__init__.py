"""GLaS (Guo et al., NeurIPS 2019)."""
