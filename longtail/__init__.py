"""Give each document the right few out of thousands to millions of labels."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longtail.runtime.waiting import wait_briefly
from longtail.version import __version__

if TYPE_CHECKING:
    from longtail.data import Dataset, load
    from longtail.errors import (
        DataError,
        LongtailError,
        MissingExtraError,
        ModelFileError,
        NotFittedError,
        ParameterError,
    )
    from longtail.evaluation.metrics import evaluate
    from longtail.models import (
        DXML,
        KNN,
        MNN,
        AttentionXML,
        Forest,
        Fusion,
        GLaS,
        Lexical,
        Linear,
        RankAE,
        load_model,
    )
    from longtail.recipe import Trained, train
    from longtail.runtime.device import set_device
    from longtail.runtime.parallel import set_threads
    from longtail.topk import TopK

wait_briefly()  # before anything loads torch

# Names are imported on first use, so that `import longtail` costs next to nothing.
_HOME = {
    "Dataset": "data",
    "load": "data",
    "DataError": "errors",
    "LongtailError": "errors",
    "MissingExtraError": "errors",
    "ModelFileError": "errors",
    "NotFittedError": "errors",
    "ParameterError": "errors",
    "evaluate": "evaluation.metrics",
    "AttentionXML": "models",
    "DXML": "models",
    "Forest": "models",
    "Fusion": "models",
    "GLaS": "models",
    "Lexical": "models",
    "KNN": "models",
    "MNN": "models",
    "Linear": "models",
    "RankAE": "models",
    "load_model": "models",
    "set_device": "runtime.device",
    "set_threads": "runtime.parallel",
    "TopK": "topk",
    "Trained": "recipe",
    "train": "recipe",
}

__all__ = [
    "DXML",
    "KNN",
    "MNN",
    "AttentionXML",
    "DataError",
    "Dataset",
    "Forest",
    "Fusion",
    "GLaS",
    "Lexical",
    "Linear",
    "LongtailError",
    "MissingExtraError",
    "ModelFileError",
    "NotFittedError",
    "ParameterError",
    "RankAE",
    "TopK",
    "Trained",
    "__version__",
    "evaluate",
    "load",
    "load_model",
    "set_device",
    "set_threads",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name from the module where it lives."""
    if name not in _HOME:
        raise AttributeError(f"module 'longtail' has no attribute '{name}'")
    return getattr(import_module(f"longtail.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return __all__
