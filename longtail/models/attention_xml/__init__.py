"""AttentionXML (You et al., NeurIPS 2019)."""
