"""Which models can be members: those that are registered and read the documents at hand."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import scipy.sparse as sp

from longtail.errors import DataError, ParameterError, suggest
from longtail.models.cost import DeviceType, Facts
from longtail.models.registry import BUILT_IN, find_models, get_model_class

if TYPE_CHECKING:
    from longtail.data import Dataset

CORE = 4  # members, the first in their order, are worth more than folds are


def find_facts(
    dataset: "Dataset", X: sp.csr_matrix, members: str | None, device: str
) -> tuple[Facts, list[str]]:
    """Return what is known of data and machine, and the models that a plan may choose from.

    Args:
        dataset: the documents.
        X: the documents as rows.
        members: the members that the user wants, as "linear,glas"; None chooses.
        device: where torch should train: auto, cpu or cuda.
    """
    named = None if members is None else parse_members(members)
    usable = _find_usable(named or [], dataset.X is None)
    uses_torch = any(get_model_class(name).needs_torch for name in named or usable)
    facts = Facts(
        n_documents=X.shape[0],
        n_labels=dataset.Y.shape[1],
        n_features=X.shape[1],
        n_values=X.nnz,
        has_texts=dataset.X is None,
        device=_find_device(device) if uses_torch else "cpu",
    )
    return facts, usable


def _find_usable(named: Sequence[str], has_texts: bool) -> list[str]:
    """Return the models that a plan may choose from; check that the named ones can be used."""
    readable = [n for n in known_members() if has_texts or "rows" in get_model_class(n).reads]
    for name in named:
        if name not in readable:
            raise DataError(
                f"the member {name} cannot be trained on feature rows; "
                f"members that can: {', '.join(readable)}"
            )
    usable = [n for n in readable if get_model_class(n).member_order is not None]
    usable.sort(key=lambda name: find_order(name, has_texts))
    if find_spec("torch") is None:
        usable = [name for name in usable if not get_model_class(name).needs_torch]
    return usable


def _find_device(device: str) -> DeviceType:
    """Return where torch will train."""
    if find_spec("torch") is None:
        if device == "cuda":
            raise ParameterError("there is no torch, hence no GPU; leave out --device cuda")
        return "cpu"
    from longtail.training.processes import choose_device

    return "cuda" if choose_device(device).type == "cuda" else "cpu"


def known_members() -> list[str]:
    """Return the models that can be members: those that a plan may choose first, in their order."""
    models, _ = find_models()
    planned = [model for model in models if model.member_order is not None]
    planned.sort(key=lambda model: model.member_order or 0)
    others = [m for m in models if m.member_order is None and m.name not in BUILT_IN]
    return [model.name for model in (*planned, *others)]


def find_order(name: str, has_texts: bool) -> int:
    """Return when a model is planned, 1 first; models that a plan does not choose come last."""
    model = get_model_class(name)
    of_rows = None if has_texts else model.member_order_of_rows
    return of_rows or model.member_order or CORE + 1


def parse_members(text: str) -> list[str]:
    """Return the names in "linear,glas", or say what is wrong with them."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = known_members()
    for name in names:
        if name not in known:
            raise ParameterError(
                f"fusion has no member '{name}'{suggest(name, known)} (known: {', '.join(known)})"
            )
    if not names or len(set(names)) < len(names):
        raise ParameterError(
            f"The 'members' parameter of Fusion must be names of models, each once, such as "
            f"linear,glas. Got {text!r} instead."
        )
    return names
