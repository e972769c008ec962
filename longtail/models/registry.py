"""The registry: every model by its name, ours and those of installed packages.

A package adds models through the entry point group `longtail.models`. A class is imported only when
its name is asked for, and a name is known only if it is ours or an installed package registers it:
opening a model folder never imports anything else.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from longtail.errors import LongtailError, ModelFileError, ParameterError, suggest

if TYPE_CHECKING:
    from longtail.models.base import Model
    from longtail.runtime.store import Files

DEFAULT_MODEL = "fusion"
GROUP = "longtail.models"
OWN_PACKAGE = "longtail"

BUILT_IN = {
    "linear": "longtail.models.linear.model:Linear",
    "glas": "longtail.models.glas.model:GLaS",
    "mnn": "longtail.models.mnn.model:MNN",
    "dxml": "longtail.models.dxml.model:DXML",
    "rank-ae": "longtail.models.rank_ae.model:RankAE",
    "lexical": "longtail.models.lexical.model:Lexical",
    "attention-xml": "longtail.models.attention_xml.model:AttentionXML",
    "knn": "longtail.models.knn.model:KNN",
    "forest": "longtail.models.forest.model:Forest",
    "fusion": "longtail.models.fusion.model:Fusion",
}


def model_names() -> list[str]:
    """Return the names of all models, ours first, as `--model` takes them."""
    return [*BUILT_IN, *_plug_ins()]


def get_model_class(name: str) -> "type[Model]":
    """Return the model called `name`."""
    if name in BUILT_IN:
        module, _, class_name = BUILT_IN[name].partition(":")
        built_in: type[Model] = getattr(import_module(module), class_name)
        return built_in
    if name in _plug_ins():
        return _load_plug_in(_plug_ins()[name])
    known = model_names()
    raise ParameterError(
        f"there is no model '{name}'{suggest(name, known)} (known: {', '.join(known)})"
    )


def find_models() -> "tuple[list[type[Model]], list[str]]":
    """Return all models that can be imported, and why others cannot.

    A package that is installed but broken must not stop those who do not ask for its model.
    """
    found, problems = [], []
    for name in model_names():
        try:
            found.append(get_model_class(name))
        except LongtailError as error:
            problems.append(str(error))
    return found, problems


def names_of_models(where: "Callable[[type[Model]], bool]") -> str:
    """Return the names of our models of which `where` is true, separated by commas."""
    return ", ".join(name for name in BUILT_IN if where(get_model_class(name)))


def load_model(path: str | Path) -> "Model":
    """Open a saved model; its files are checked first, and nothing in them is executed."""
    from longtail.runtime.store import read_folder

    return build_model(read_folder(path), path)


def build_model(files: "Files", path: str | Path) -> "Model":
    """Build the model that `files` hold; `path` is named in errors."""
    name = files.config.get("model")
    if not isinstance(name, str) or name not in model_names():
        package = files.config.get("package", OWN_PACKAGE)
        if package != OWN_PACKAGE:
            raise ModelFileError(
                f"{path}: holds a model '{name}' of the package {package}, which is not installed "
                f"here or does not register it; install {package}, then load the model again"
            )
        raise ModelFileError(
            f"{path}: holds a model '{name}', which this version of longtail does not know; "
            "upgrade longtail or train the model again"
        )
    return get_model_class(name).from_files(files, path)


# -- models of other packages -----------------------------------------------------------------


@cache
def _plug_ins() -> dict[str, EntryPoint]:
    """Return the models that installed packages register; none can take the name of ours."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        if point.name not in BUILT_IN:
            found.setdefault(point.name, point)
    return found


def _load_plug_in(point: EntryPoint) -> "type[Model]":
    """Import a model of another package, or say in one line why that fails."""
    from longtail.models.base import Model

    package = "an unknown package" if point.dist is None else f"the package {point.dist.name}"
    try:
        found = point.load()
    except Exception as error:
        raise LongtailError(
            f"the model '{point.name}' of {package} cannot be imported from {point.value}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise LongtailError(
            f"the model '{point.name}' of {package} is {point.value}, which is no subclass of "
            "longtail.models.Model"
        )
    if found.name != point.name:
        raise LongtailError(
            f"{package} registers {point.value} as '{point.name}', but its name is '{found.name}'; "
            "both must be the same"
        )
    return found
