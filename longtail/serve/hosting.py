"""Hosting: the model folders that are served, each in the version that lies there now.

A folder that is replaced is loaded beside the version that answers, and then takes its place. A
request keeps the version that it began with. A folder that cannot be loaded changes nothing: the
version that answers goes on, and `problem` says what is wrong with the new one.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from json.encoder import encode_basestring_ascii as as_json
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from longtail.errors import LongtailError, ModelFileError, ParameterError
from longtail.models import load_model
from longtail.models.base import Model
from longtail.models.card import now
from longtail.models.checks import find_threshold
from longtail.runtime.store import identify, read_digest
from longtail.serve.feedback import name_model
from longtail.serve.labels import Labels
from longtail.storage import RemotePath
from longtail.topk import NO_LABEL, TopK
from longtail.visible import visible

VERSION_DIGITS = 12

_log = logging.getLogger("longtail.serve")


@dataclass(frozen=True)
class Asked:
    """What a client wants to know: how many labels, of which probability, named how."""

    k: int | None
    threshold: float | str | None = None
    language: str | None = None


class Version:
    """A model as it was loaded from its folder."""

    def __init__(self, model: Model, identity: object, digest: str) -> None:
        """Take a model from the folder that `identity` tells from others, with its digest."""
        self.model = model
        self.identity = identity
        self.name = digest[:VERSION_DIGITS]
        self.loaded = now()

    @cached_property
    def labels(self) -> Labels:
        """Finds labels by what people type, and describes them."""
        return Labels(self.model)

    def check(self, asked: Asked) -> None:
        """Raise ParameterError if the model cannot answer that."""
        if asked.threshold is not None:
            find_threshold(asked.threshold, self.model.calibration_)
        if asked.language is not None:
            self.model.names_in(asked.language)

    def predict(self, documents: Sequence[Any], asked: Asked) -> TopK:
        """Return the labels of each document, the very ones that `Model.predict` gives."""
        data: Any = list(documents)
        if self.model.trained_on == "rows":
            data = sp.vstack(data, format="csr")
        return self.model.predict(data, asked.k, threshold=asked.threshold, language=asked.language)

    def make_row(self, indices: Sequence[int], values: Sequence[float]) -> sp.csr_matrix:
        """Return a document of features as a row."""
        n = self.model.n_features_
        if len(indices) != len(values):
            raise ParameterError(f"a row has {len(indices)} indices, but {len(values)} values")
        if indices and max(indices) >= n:
            raise ParameterError(
                f"a row has the feature {max(indices)}, but the model knows {n:,}, counted from 0"
            )
        cells = (np.asarray(values, np.float32), (np.zeros(len(indices), int), list(indices)))
        return sp.csr_matrix(cells, shape=(1, n))

    def warm_up(self) -> None:
        """Label one document, so that compiled code is there when the first client comes."""
        rows = self.model.trained_on == "rows"
        self.predict([self.make_row([0], [1.0]) if rows else self.model.label_names_[0]], WARM_UP)


WARM_UP = Asked(k=1)


def name_labels(top: TopK) -> list[list[dict[str, Any]]]:
    """Return each document's labels: their number, name and score."""
    rows = zip(top.labels.tolist(), top.to_list(), strict=True)
    return [
        [{"id": label, **each} for label, each in zip(_given(labels), named, strict=True)]
        for labels, named in rows
    ]


def write_labels(top: TopK) -> list[str]:
    """Return JSON of what `name_labels` returns, in a fraction of the time."""
    known, uris = top.label_names or (), top.label_uris
    rows = zip(top.labels.tolist(), top.score_lists(), strict=True)
    return ["[" + ",".join(_write(*row, known, uris)) + "]" for row in rows]


def _write(
    labels: list[int],
    scores: list[float],
    known: Sequence[str],
    uris: Sequence[str | None] | None,
) -> Iterator[str]:
    for label, score in zip(_given(labels), scores, strict=True):
        uri = None if uris is None else uris[label]
        rest = "" if uri is None else f',"uri":{as_json(uri)}'
        yield f'{{"id":{label},"label":{as_json(known[label])},"score":{score!r}{rest}}}'


def _given(labels: list[int]) -> list[int]:
    return [label for label in labels if label != NO_LABEL]


REMOTE_SECONDS = 30.0  # from one look at a model at a URL to the next


class Hosted:
    """A model folder, its version that answers, and what is wrong with a newer one."""

    def __init__(self, path: Path) -> None:
        """Load the folder; raise what is wrong with it."""
        self.path = path.absolute()
        self.name = name_model(self.path)
        self.current = _load(self.path)
        self.problem: str | None = None
        self._seen = self.current.identity
        self._looked = time.monotonic()

    def refresh(self) -> bool:
        """Load what has taken the folder's place, if anything has; whether it answers now."""
        pause = REMOTE_SECONDS if isinstance(self.path, RemotePath) else 0.0
        if time.monotonic() - self._looked < pause:
            return False
        self._looked = time.monotonic()
        found = self._seen
        try:
            found = identify(self.path.resolve())
            if found == self._seen:
                return False
            self.current = _load(self.path)
        except Exception as error:  # whatever it is, the version that answers goes on
            self._seen = found
            self.problem = self._describe(error)
            return False
        self._seen, self.problem = self.current.identity, None
        return True

    def _describe(self, error: Exception) -> str:
        """Say why a version cannot be loaded; what no user can put right is logged."""
        if isinstance(error, LongtailError | OSError):
            return str(error)
        _log.error("%s: cannot be loaded", visible(str(self.path)), exc_info=error)
        return f"{self.path}: cannot be loaded ({type(error).__name__}); the log says more"


def _load(path: Path) -> Version:
    """Load a folder and its digest, both of one version."""
    while True:
        before = identify(path.resolve())
        model = load_model(path)
        digest = read_digest(path)  # None while it is being replaced
        if digest and identify(path.resolve()) == before:
            version = Version(model, before, digest)
            version.warm_up()
            return version
        if not path.exists():
            raise ModelFileError(f"{path}: the folder is gone")


def host_all(paths: Sequence[Path]) -> dict[str, Hosted]:
    """Load all folders; each is called by its last name, which no other may have."""
    names = Counter(name_model(path) for path in paths)
    (name, n), *_ = names.most_common(1)
    if n > 1:
        raise ParameterError(
            f"{n} of the folders are called '{name}', which is how clients name a model; "
            "rename all but one"
        )
    hosted = [Hosted(path) for path in paths]
    return {each.name: each for each in hosted}
