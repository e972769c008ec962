"""MNN (Zhao et al., 2021)."""
