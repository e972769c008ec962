"""The models; each class is imported only when it is asked for."""

from typing import TYPE_CHECKING, Any

from longtail.models.registry import BUILT_IN, get_model_class, load_model, model_names

if TYPE_CHECKING:
    from longtail.models.attention_xml.model import AttentionXML
    from longtail.models.base import Model
    from longtail.models.dxml.model import DXML
    from longtail.models.forest.model import Forest
    from longtail.models.fusion.model import Fusion
    from longtail.models.glas.model import GLaS
    from longtail.models.knn.model import KNN
    from longtail.models.lexical.model import Lexical
    from longtail.models.linear.model import Linear
    from longtail.models.mnn.model import MNN
    from longtail.models.rank_ae.model import RankAE

__all__ = [
    "DXML",
    "KNN",
    "MNN",
    "AttentionXML",
    "Forest",
    "Fusion",
    "GLaS",
    "Lexical",
    "Linear",
    "Model",
    "RankAE",
    "get_model_class",
    "load_model",
    "model_names",
]


def __getattr__(name: str) -> Any:
    """Import a model class on first use."""
    if name == "Model":
        from longtail.models.base import Model

        return Model
    for model_name, place in BUILT_IN.items():
        if place.endswith(f":{name}"):
            return get_model_class(model_name)
    raise AttributeError(f"module 'longtail.models' has no attribute '{name}'")
