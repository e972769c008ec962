"""AttentionXML's named settings: a small form for CPUs, and the paper's own for its sets."""

from collections.abc import Mapping
from typing import Any

# What the paper says of all its sets, and in table 2 of each; it begins with GloVe (`vectors`).
PAPER: Mapping[str, Any] = {
    "word_dim": 300,
    "hidden": 256,
    "head": 256,
    "epochs": 30,
    "inner_epochs": 30,
    "batch_size": 40,
    "learning_rate": 0.001,
    "schedule": "constant",
    "min_documents": 1,
    "pretrain": False,
    "word_dropout": 0.2,
    "direct": False,
    "path_weight": 1.0,
}
FROZEN: Mapping[str, Any] = {**PAPER, "train_vectors": False, "pretrain": True, "levels": 0}
LARGE: Mapping[str, Any] = {
    **PAPER,
    "hidden": 512,
    "head": "512,256",
    "epochs": 10,
    "inner_epochs": 10,
    "batch_size": 200,
}
LARGEST: Mapping[str, Any] = {**LARGE, "epochs": 5, "inner_epochs": 5}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "small": {
        "word_dim": 100,
        "hidden": 64,
        "head": 64,
        "max_length": 100,
        "word_dropout": 0.2,
        "dropout": 0.3,
        "branching": 16,
        "widest": 600,
        "compared": 128,
    },
    "paper": PAPER,
    "eurlex-4k": FROZEN,
    "wiki10-31k": FROZEN,
    "amazoncat-13k": {**LARGE, "levels": 0},
    "amazon-670k": {**LARGE, "levels": 3, "branching": 8, "candidates": 160},
    "wiki-500k": {**LARGEST, "levels": 1, "branching": 64, "candidates": 15},
    "amazon-3m": {**LARGEST, "levels": 3, "branching": 8, "candidates": 160},
}
