"""Living label sets: rename, merge, drop and add labels of a trained model, without training.

All models are changed in the same way: labels keep their numbers inside, and `labels/state.py` says
as which label each is given. Only a label without documents needs a model that looks for names.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from longtail.errors import ParameterError
from longtail.labels.finding import Names, fold_names, search
from longtail.labels.state import DROPPED, LabelState
from longtail.labels.vocabulary import NO_CONCEPT
from longtail.models.base import Model


def find_label(model: Model, given: str) -> int:
    """Return the number of a label that is given, by its name, or its URI or code if it has any."""
    label = _look_up(model, given)
    state = model.label_state_
    if label is None:
        near = search_labels(model, given, 1)
        hint = f"; did you mean '{near[0]['label']}'?" if near else ""
        raise ParameterError(f"the model has no label '{given}'{hint}")
    if not state.is_live(label):
        raise ParameterError(f"the label '{given}' {_tell_fate(model, label)}")
    return label


def rename_label(model: Model, old: str, new: str) -> str:
    """Give a label another name; data may still use the old one. Return what was done."""
    label = find_label(model, old)
    _check_free(model, new, "; to make one label of both, merge them")
    before = model.label_names_[label]
    names = list(model.label_names_)
    names[label] = new
    model.set_label_names(names)
    model.label_state_ = model.label_state_.rename(label, before)
    if model.finds_names:
        model.add_names([(label, new)])
    return _note(model, f"the label '{before}' is now called '{new}'")


def merge_labels(model: Model, sources: Sequence[str], target: str) -> str:
    """Give labels as another one from now on, which has their scores in all."""
    kept = find_label(model, target)
    merged = [find_label(model, source) for source in sources]
    if kept in merged:
        raise ParameterError(f"the label '{target}' cannot be merged with itself")
    model.label_state_ = model.label_state_.merge(merged, kept, len(model.label_names_))
    names = ", ".join(f"'{model.label_names_[label]}'" for label in merged)
    return _note(model, f"{names} became part of the label '{model.label_names_[kept]}'")


def drop_labels(model: Model, labels: Sequence[str]) -> str:
    """Never give some labels again."""
    dropped = [find_label(model, label) for label in labels]
    n_labels = len(model.label_names_)
    state = model.label_state_.drop(dropped, n_labels)
    if not state.live(n_labels).any():
        raise ParameterError("a model without any label is of no use; leave at least one")
    model.label_state_ = state
    names = ", ".join(f"'{model.label_names_[label]}'" for label in dropped)
    return _note(model, f"{names} will not be given any more")


def add_label(model: Model, name: str, other_names: Sequence[str] = ()) -> str:
    """Add a label without documents, found by its names; or bring back one that was dropped."""
    known = _look_up(model, name)
    state = model.label_state_
    if known is not None and state.targets is not None and state.given[known] == DROPPED:
        model.label_state_ = state.bring_back(known)
        return _note(model, f"the label '{model.label_names_[known]}' is given again")
    _check_free(model, name)
    if not model.finds_names:
        raise ParameterError(
            f"this {model.name} cannot find a label that has no documents; lexical can, by its "
            "name, alone or as a member of fusion. Labels with documents: longtail update"
        )
    concept = NO_CONCEPT if state.vocabulary is None else state.vocabulary.find(name)
    names = [name, *other_names]
    if state.vocabulary is not None and concept >= 0:
        names += state.vocabulary.names_of(concept)
    label = len(model.label_names_)
    if state.vocabulary is not None:
        model.label_state_ = state.widen(label + 1, [max(concept, NO_CONCEPT)])
    model.set_label_names([*model.label_names_, name])
    model.add_names([(label, each) for each in dict.fromkeys(names)])
    found = _note(model, f"the label '{name}' is found by its names")
    return f"{found}; {model.say_unseen()}"


def list_labels(model: Model, limit: int = 20, language: str | None = None) -> list[dict[str, Any]]:
    """Return the labels that are given, the most frequent first: name, documents, URI if any."""
    counts = model.current_counts.label_counts
    live = np.flatnonzero(model.label_state_.live(len(counts)))
    order = live[np.argsort(-counts[live], kind="stable")[:limit]]
    return _as_rows(model, order.tolist(), language)


def count_live(model: Model) -> int:
    """Return how many labels the model gives."""
    return int(model.label_state_.live(len(model.label_names_)).sum())


def search_labels(
    model: Model, typed: str, limit: int = 20, language: str | None = None
) -> list[dict[str, Any]]:
    """Return the labels that have a name like `typed`, the best first; see `labels/finding.py`."""
    counts = model.current_counts.label_counts
    return _as_rows(model, search(fold_labels(model), typed, counts, limit), language)


def fold_labels(model: Model) -> Names:
    """Return all names of the labels that are given, ready to be searched."""
    state = model.label_state_
    live = np.flatnonzero(state.live(len(model.label_names_))).astype(np.int32)
    names = model.label_names_
    if len(live) < len(names):
        names = [names[label] for label in live.tolist()]
    if state.vocabulary is None or state.concepts is None:
        return fold_names(names, live)
    others: list[str] = []
    owners = array("i")
    for label in live[state.concepts[live] >= 0].tolist():
        more = state.vocabulary.names_of(int(state.concepts[label]))
        others += more
        owners.extend([label] * len(more))
    return fold_names([*names, *others], np.concatenate([live, np.array(owners, np.int32)]))


def _as_rows(model: Model, labels: Sequence[int], language: str | None) -> list[dict[str, Any]]:
    names = model.label_names_ if language is None else model.names_in(language)
    counts, uris = model.current_counts.label_counts, model.label_uris
    return [
        {"label": names[label], "documents": int(counts[label])}
        | ({"uri": uri} if uris is not None and (uri := uris[label]) is not None else {})
        for label in labels
    ]


def _look_up(model: Model, given: str) -> int | None:
    """Return the label of this name, URI or code, whatever became of it; None if there is none."""
    if given in model.label_names_:
        return list(model.label_names_).index(given)
    state = model.label_state_
    if state.vocabulary is None or state.concepts is None:
        return None
    concept = state.vocabulary.find(given)
    if concept < 0:
        return None
    places = np.flatnonzero(state.concepts == concept)
    return int(places[0]) if len(places) else None


def _check_free(model: Model, name: str, hint: str = "") -> None:
    """Raise ParameterError if a name is no name, or taken."""
    if not name.strip():
        raise ParameterError("a label needs a name. Got a blank one instead.")
    label = _look_up(model, name)
    if label is None:
        return
    if model.label_state_.is_live(label):
        raise ParameterError(f"there is a label '{name}' already{hint}")
    raise ParameterError(f"the name '{name}' is taken by a label that {_tell_fate(model, label)}")


def _tell_fate(model: Model, label: int) -> str:
    state: LabelState = model.label_state_
    target = DROPPED if state.targets is None else int(state.given[label])
    if target == DROPPED:
        return "was dropped; longtail labels DIR add brings it back"
    return f"became part of '{model.label_names_[target]}'"


def _note(model: Model, event: str) -> str:
    """Write what was done into the model's history, and return it."""
    model.note_event(event)
    return event
