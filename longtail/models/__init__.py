"""The closed list of models; each is imported only when it is asked for."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.errors import ModelFileError, ParameterError, suggest

if TYPE_CHECKING:
    from longtail.models.attention_xml.model import AttentionXML
    from longtail.models.base import Model
    from longtail.models.dxml.model import DXML
    from longtail.models.fusion.model import Fusion
    from longtail.models.glas.model import GLaS
    from longtail.models.knn.model import KNN
    from longtail.models.linear.model import Linear
    from longtail.models.mnn.model import MNN
    from longtail.models.rank_ae.model import RankAE

__all__ = [
    "DXML",
    "KNN",
    "MNN",
    "AttentionXML",
    "Fusion",
    "GLaS",
    "Linear",
    "RankAE",
    "get_model_class",
    "load_model",
    "model_names",
]

_CLASSES = {
    "linear": "Linear",
    "glas": "GLaS",
    "mnn": "MNN",
    "dxml": "DXML",
    "rank-ae": "RankAE",
    "attention-xml": "AttentionXML",
    "knn": "KNN",
    "fusion": "Fusion",
}


def model_names() -> list[str]:
    """Return the names of all models, as `--model` takes them."""
    return list(_CLASSES)


def get_model_class(name: str) -> "type[Model]":
    """Return the model called `name`."""
    if name not in _CLASSES:
        known = ", ".join(_CLASSES)
        raise ParameterError(
            f"there is no model '{name}'{suggest(name, _CLASSES)} (known: {known})"
        )
    module = import_module(f"longtail.models.{name.replace('-', '_')}.model")
    model_class: type[Model] = getattr(module, _CLASSES[name])
    return model_class


def load_model(path: str | Path) -> "Model":
    """Open a saved model; its files are checked first, and nothing in them is executed."""
    from longtail.runtime.store import read_folder

    files = read_folder(path)
    name = files.config.get("model")
    if name not in _CLASSES:
        raise ModelFileError(
            f"{path}: holds a model '{name}', which this version of longtail does not know; "
            "upgrade longtail or train the model again"
        )
    return get_model_class(name).from_files(files, path)


def __getattr__(name: str) -> Any:
    """Import a model class on first use."""
    for model_name, class_name in _CLASSES.items():
        if class_name == name:
            return get_model_class(model_name)
    raise AttributeError(f"module 'longtail.models' has no attribute '{name}'")
