"""Every model as a scikit-learn estimator.

    from longtail.sklearn import LinearClassifier, precision_at

    values = {"C": [0.5, 1, 2]}
    search = GridSearchCV(LinearClassifier(), values, scoring=precision_at(1), cv=KFold(3))
    search.fit(texts, labels)

An estimator has the parameters of its model and three of its own. It learns from a matrix of
features or from texts, and from an indicator matrix, from lists of labels, or from one class for
each document, and answers in kind. (With lists of labels, GridSearchCV needs a splitter such as
KFold, as it cannot stratify them.)
"""

import inspect
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from longtail.data import Dataset
from longtail.data.coerce import as_labels
from longtail.data.labels import NumberedNames
from longtail.errors import DataError, ParameterError, suggest
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
)
from longtail.models.base import Model
from longtail.recipe import train
from longtail.runtime.memory import format_bytes, free_ram
from longtail.runtime.settings import settings_of
from longtail.topk import NO_LABEL, TopK

__all__ = [
    "AttentionXMLClassifier",
    "DXMLClassifier",
    "ForestClassifier",
    "FusionClassifier",
    "GLaSClassifier",
    "KNNClassifier",
    "LabelClassifier",
    "LexicalClassifier",
    "LinearClassifier",
    "MNNClassifier",
    "RankAEClassifier",
    "precision_at",
]

OWN: dict[str, Any] = {"k": None, "threshold": 0.5, "calibrate": True}  # parameters and defaults
SCORED = 1 << 22  # labels of documents that are scored at once
MOST_LABELS = 100  # of a document, unless `k` says otherwise
LEAST = 1e-7  # probability of a label

Kind = Literal["classes", "dense", "sparse", "lists"]


class LabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A model as a scikit-learn estimator; its subclasses name the model.

    Args:
        k: how many labels of a document `predict` returns at most; None for 100.
        threshold: how probable a label must be for `predict` to return it.
        calibrate: whether a tenth of the documents, if there are a hundred, is held out first to
            turn scores into probabilities, which takes a training more. Single classes do without.

    All other arguments are the model's parameters.

    Attributes:
        classes_: the label of each column, or the classes.
        model_: the trained model.
        n_features_in_: features of the rows; absent for texts.
    """

    model_class: ClassVar[type[Model]]

    def __init_subclass__(cls, **more: Any) -> None:
        """Give the subclass a constructor with the parameters of its model."""
        super().__init_subclass__(**more)
        declared = {each.name: each.default for each in settings_of(cls.model_class).values()}
        defaults = {**OWN, **declared}

        def __init__(self: Any, **given: Any) -> None:
            for name in given:
                if name not in defaults:
                    hint = suggest(name, defaults)
                    raise TypeError(f"{cls.__name__} has no parameter '{name}'{hint}")
            for name, default in defaults.items():
                setattr(self, name, given.get(name, default))

        self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in defaults.items()
        ]
        __init__.__signature__ = inspect.Signature([self_parameter, *named])  # type: ignore[attr-defined]
        cls.__init__ = __init__  # type: ignore[method-assign]

    # -- learning -----------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from documents and their labels.

        Args:
            X: a dense or sparse matrix of features, or texts.
            y: an indicator matrix, dense or sparse; a list of labels for each document; or a class
                for each.
        """
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        documents = self._read(X, reset=True)
        read = _read_targets(y)
        n = len(documents) if isinstance(documents, list) else documents.shape[0]
        if read.Y.shape[0] != n:
            raise ValueError(f"X holds {n} documents, but y has {read.Y.shape[0]} rows")
        self.classes_, self._kind = read.classes, read.kind
        names: Sequence[str] = NumberedNames(read.Y.shape[1])
        if self._kind in ("lists", "classes"):
            names = [str(name) for name in read.classes.tolist()]
        if isinstance(documents, list):
            dataset = Dataset(read.Y, names, texts=documents)
        else:
            dataset = Dataset(read.Y, names, X=documents)
        model = self.model_class(
            **{name: getattr(self, name) for name in settings_of(self.model_class)}
        )
        try:
            self.model_ = self._train(model, dataset)
        except DataError as error:  # scikit-learn expects no other class
            raise ValueError(str(error)) from error
        return self

    def _train(self, model: Model, dataset: Dataset) -> Model:
        """Return the trained model, with probabilities if they are wanted."""
        if self._kind == "classes" or not self._parameter("calibrate"):
            return model.fit(dataset)
        settings = model.get_parameters()
        if model.tfidf is not None:
            parameters = settings_of(type(model.tfidf))
            settings |= {f"tfidf.{name}": getattr(model.tfidf, name) for name in parameters}
        return train(dataset, model=self.model_class, settings=settings).model

    def _read(self, X: Any, *, reset: bool) -> list[str] | sp.csr_matrix:
        """Return texts as they are, anything else as a checked matrix."""
        if (texts := _as_texts(X)) is not None:
            return texts
        checked = validate_data(self, X, reset=reset, accept_sparse="csr", dtype=np.float32)
        return sp.csr_matrix(checked)

    def _parameter(self, name: str) -> Any:
        return getattr(self, name)

    # -- answering ----------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Return the labels of documents as `fit` got them.

        That is an indicator matrix, sparse unless `fit` got a dense one, or the class of each.
        """
        documents = self._read_fitted(X)
        if self._kind == "classes":
            return self.classes_[np.argmax(self._score_all(documents), axis=1)]
        found = self._choose(documents)
        Y = found if self._kind != "dense" else found.toarray()
        return Y.astype(np.int64)

    def predict_labels(self, X: Any) -> list[tuple[Any, ...]]:
        """Return the labels that `predict` finds, by name, the first label first."""
        documents = self._read_fitted(X)
        if self._kind == "classes":
            return [(name,) for name in self.predict(X).tolist()]
        found = self._choose(documents)
        return [
            tuple(self.classes_[found.indices[a:b]].tolist())
            for a, b in zip(found.indptr[:-1], found.indptr[1:], strict=True)
        ]

    def predict_top(self, X: Any, k: int = 5) -> TopK:
        """Return the `k` best labels of each document, whose numbers are places in `classes_`."""
        return self.model_.predict(self._read_fitted(X), k)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of every label, (n, labels); single classes sum to 1."""
        return self._score_all(self._read_fitted(X))

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the log-odds of every label, (n, labels), or (n,) of the second of two classes."""
        scores = self.predict_proba(X)
        odds: NDArray[np.float64] = np.log(scores) - np.log1p(-scores)
        return odds[:, 1] if self._kind == "classes" and len(self.classes_) == 2 else odds

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of documents whose labels are all found and no others."""
        if getattr(self, "_kind", None) == "lists" and not sp.issparse(y):
            found = self.predict_labels(X)
            right = [set(a) == set(b) for a, b in zip(found, y, strict=True)]
            return float(np.average(right, weights=sample_weight))
        return float(super().score(X, y, sample_weight))

    def _read_fitted(self, X: Any) -> list[str] | sp.csr_matrix:
        check_is_fitted(self, "model_")
        return self._read(X, reset=False)

    def _choose(self, documents: list[str] | sp.csr_matrix) -> sp.csr_matrix:
        """Return which labels are probable enough, as a matrix of ones."""
        n_labels = len(self.classes_)
        k = min(self._parameter("k") or MOST_LABELS, n_labels)
        top = self.model_.predict(documents, k).above(self._parameter("threshold"))
        is_label = top.labels != NO_LABEL
        rows, _ = np.nonzero(is_label)
        ones = np.ones(len(rows), np.float32)
        found = sp.csr_matrix((ones, (rows, top.labels[is_label])), shape=(len(top), n_labels))
        found.sort_indices()
        return found

    def _score_all(self, documents: list[str] | sp.csr_matrix) -> NDArray[np.float64]:
        """Return the scores of all labels of all documents, some documents at a time."""
        n = len(documents) if isinstance(documents, list) else documents.shape[0]
        n_labels = len(self.classes_)
        free = free_ram()
        if free is not None and 8 * n * n_labels > free // 2:
            raise DataError(
                f"the scores of {n_labels} labels for {n} documents would take "
                f"{format_bytes(8 * n * n_labels)}; give fewer documents at a time, or call "
                "predict_top, which returns the best labels alone"
            )
        scores = np.empty((n, n_labels))
        size = max(1, SCORED // n_labels)
        every = np.arange(n_labels, dtype=np.int32)
        for a in range(0, n, size):
            some = documents[a : a + size]
            m = len(some) if isinstance(some, list) else some.shape[0]
            scores[a : a + size] = self.model_.score(some, np.tile(every, (m, 1)))
        scores = np.clip(scores, LEAST, 1 - LEAST)  # no label is impossible, none certain
        if self._kind == "classes":
            scores /= scores.sum(axis=1, keepdims=True)
        return scores

    def __sklearn_tags__(self) -> Any:
        """Say that it reads sparse rows and texts, and that a document may have several labels."""
        tags = super().__sklearn_tags__()
        reads = self.model_class.reads
        tags.input_tags.sparse = tags.input_tags.two_d_array = "rows" in reads
        tags.input_tags.string = "texts" in reads
        tags.classifier_tags.multi_label = True
        return tags


class Targets(NamedTuple):
    """What was given as y."""

    Y: sp.csr_matrix
    classes: NDArray[Any]
    kind: Kind


def _read_targets(y: Any) -> Targets:
    """Return the labels as a matrix, their names, and what kind of y it was."""
    if sp.issparse(y):
        Y, _ = as_labels(y, 0)
        return Targets(Y, np.arange(Y.shape[1]), "sparse")
    if _are_lists(y):
        binarizer = MultiLabelBinarizer(sparse_output=True).fit(y)
        return Targets(
            sp.csr_matrix(binarizer.transform(y), dtype=np.float32), binarizer.classes_, "lists"
        )
    given = np.asarray(y)
    if given.dtype.kind == "f":
        assert_all_finite(given, input_name="y")
    if given.ndim == 2 and given.shape[1] > 1:
        check_classification_targets(given)
        Y, _ = as_labels(given, len(given))
        return Targets(Y, np.arange(Y.shape[1]), "dense")
    given = column_or_1d(y, warn=True)
    check_classification_targets(given)
    classes, places = np.unique(given, return_inverse=True)
    ones = np.ones(len(given), np.float32)
    Y = sp.csr_matrix((ones, (np.arange(len(given)), places)), shape=(len(given), len(classes)))
    return Targets(Y, classes, "classes")


def _are_lists(y: Any) -> bool:
    """Whether y has a collection of labels for each document, and is no matrix of numbers."""
    if hasattr(y, "dtype") and y.dtype != object:
        return False
    if not isinstance(y, Collection):
        return False
    rows = list(y)
    if not all(isinstance(row, list | tuple | set | frozenset | np.ndarray) for row in rows):
        return False
    lengths = {len(row) for row in rows}
    is_matrix = len(lengths) == 1 and all(
        isinstance(value, int | float | np.number) and value in (0, 1)
        for row in rows
        for value in row
    )
    return not is_matrix


def _as_texts(X: Any) -> list[str] | None:
    """Return X as a list if it holds texts."""
    if isinstance(X, str | bytes) or sp.issparse(X) or getattr(X, "ndim", 1) != 1:
        return None
    texts = list(X) if isinstance(X, Sequence) else np.asarray(X).tolist()
    if not isinstance(texts, list):
        return None
    return texts if texts and all(isinstance(text, str) for text in texts) else None


def precision_at(k: int) -> Callable[[Any, Any, Any], float]:
    """Return a scorer: the share of right labels among the `k` best, from 0 to 1.

    It is for estimators of this module, alone or at the end of a Pipeline.
    """
    if k < 1:
        raise ParameterError(f"k must be at least 1. Got {k} instead.")
    return partial(_precision, k=k)


def _precision(estimator: Any, X: Any, y: Any, k: int) -> float:
    if isinstance(estimator, Pipeline):
        X, estimator = estimator[:-1].transform(X), estimator[-1]
    top = estimator.predict_top(X, k)
    given = _read_targets(y)
    places = {name: place for place, name in enumerate(estimator.classes_.tolist())}
    unknown = len(places)  # labels that training has not seen count as missed
    moved = np.array([places.get(name, unknown) for name in given.classes.tolist()], np.int64)
    Y = given.Y.tocoo()
    shape = (Y.shape[0], unknown + 1)
    right = sp.csr_matrix((Y.data, (Y.row, moved[Y.col])), shape=shape, dtype=np.float32)
    return evaluate(TopK(top.labels, top.scores), right, k=(k,))[f"P@{k}"] / 100


class LinearClassifier(LabelClassifier):
    """A tree of linear classifiers; see `longtail.Linear` for its parameters."""

    model_class = Linear


class KNNClassifier(LabelClassifier):
    """Nearest neighbours; see `longtail.KNN` for its parameters."""

    model_class = KNN

    def __sklearn_tags__(self) -> Any:
        """Say that words and their neighbours are compared by features that are not negative."""
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self._parameter("space") == KNN().space
        tags.classifier_tags.poor_score = True  # by cosine, which a few dense features do not suit
        return tags


class ForestClassifier(LabelClassifier):
    """Random trees over features; see `longtail.Forest` for its parameters."""

    model_class = Forest


class GLaSClassifier(LabelClassifier):
    """Embeddings of documents and labels; see `longtail.GLaS` for its parameters."""

    model_class = GLaS


class MNNClassifier(LabelClassifier):
    """Neighbours in a learned space; see `longtail.MNN` for its parameters."""

    model_class = MNN


class DXMLClassifier(LabelClassifier):
    """Embeddings by a label graph; see `longtail.DXML` for its parameters."""

    model_class = DXML


class RankAEClassifier(LabelClassifier):
    """An autoencoder of labels; see `longtail.RankAE` for its parameters."""

    model_class = RankAE


class LexicalClassifier(LabelClassifier):
    """Labels whose names stand in texts; see `longtail.Lexical` for its parameters."""

    model_class = Lexical


class AttentionXMLClassifier(LabelClassifier):
    """Attention over the words of texts; see `longtail.AttentionXML` for its parameters."""

    model_class = AttentionXML


class FusionClassifier(LabelClassifier):
    """Several models, stacked; see `longtail.Fusion` for its parameters."""

    model_class = Fusion
