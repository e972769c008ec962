"""What all models share: settings, checks, features from raw text, fallback, saving."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset, as_dataset, as_documents
from longtail.errors import DataError, ModelFileError, NotFittedError, ParameterError, suggest
from longtail.evaluation.calibration import AUTOMATIC, Calibration, Method, choose_depth
from longtail.evaluation.explanation import Explanation, explain_terms
from longtail.evaluation.metrics import TrainingCounts
from longtail.progress import SILENT, Progress
from longtail.runtime.store import Files, write_folder
from longtail.text.tfidf import Tfidf
from longtail.topk import TopK

Documents = Dataset | sp.spmatrix | sp.sparray | Sequence[str]
Kind = Literal["texts", "rows"]

USUAL_K = 5  # labels for each document, if neither their number nor a threshold is given


class Model(ABC):
    """Learns from documents with labels, then ranks labels for other documents.

    Attributes:
        name: what `--model` calls it.
        summary: what it is, in one sentence.
        choose_when: when it is the right choice, in one sentence.
        presets: named sets of parameters, each for another purpose than the defaults.
        reads: the kinds of documents that it can be trained on.
        trained_on: after fit, the kind that it was trained on, which is what it predicts for.
        label_names_: after fit, the name of each label.
        training_counts_: after fit, how many documents there were, and how many for each label.
        features_: after fit, how texts become rows; None if there was no need for that.
        n_features_: after fit, the number of columns of those rows; 0 if it reads no rows.
        calibration_: after calibrate, what makes probabilities of scores; None before.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    choose_when: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    reads: ClassVar[tuple[Kind, ...]] = ("texts", "rows")
    needs_torch: ClassVar[bool] = False
    can_resume: ClassVar[bool] = False

    tfidf: Tfidf | None
    seed: int
    trained_on: Kind
    label_names_: Sequence[str]
    training_counts_: TrainingCounts
    features_: Tfidf | None = None
    n_features_: int = 0
    calibration_: Calibration | None = None
    run_dir: Path | None = None
    resume: bool = False

    # -- what each model adds ---------------------------------------------------------------

    @abstractmethod
    def check_parameters(self) -> None:
        """Raise ParameterError for the first parameter that is out of range."""

    @abstractmethod
    def add_to_files(self, files: Files) -> None:
        """Add what was learned to the files of the model folder."""

    @abstractmethod
    def restore(self, files: Files) -> None:
        """Take back what `add_to_files` wrote."""

    def fit_rows(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> None:
        """Learn from feature rows; there is at least one document with a label.

        A model of rows overrides it; one that reads documents as they are overrides
        `fit_documents` and `predict_documents` instead.
        """
        raise NotImplementedError

    def predict_rows(self, X: sp.csr_matrix, k: int) -> TopK:
        """Rank labels for one row or more; k is at most the number of labels."""
        raise NotImplementedError

    def fit_documents(self, dataset: Dataset, progress: Progress) -> None:
        """Learn from documents, of which at least one has a label: as rows, unless overridden."""
        features = None
        if dataset.X is not None:
            X = dataset.X
        else:
            features = (self.tfidf or Tfidf()).copy()
            progress.stage("reading texts", 1)
            X = features.fit_transform(dataset.texts or [])
            progress.advance(1)
        self.fit_features(X, dataset.Y, features, progress)
        self.features_ = features
        self.n_features_ = int(X.shape[1])

    def predict_documents(self, documents: list[str] | sp.csr_matrix, k: int) -> TopK:
        """Rank labels for documents of the right kind: as rows, unless overridden."""
        X = self._as_rows(documents)
        if X.shape[0] == 0:
            return TopK(np.empty((0, k), np.int32), np.empty((0, k), np.float32))
        top = self.predict_rows(X, k)
        empty = np.flatnonzero(np.diff(X.indptr) == 0)
        if len(empty):
            top.labels[empty], top.scores[empty] = self.frequent_labels(k)
        return top

    def fit_features(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, features: Tfidf | None, progress: Progress
    ) -> None:
        """Learn from the rows that `features` made of texts; None if they came as rows."""
        self.fit_rows(X, Y, progress)

    def explain_row(self, X: sp.csr_matrix, label: int | None) -> NDArray[np.float32]:
        """Return how much each cell of the one row X weighs, in general or for one label.

        Models that can do so override it, or `explain` as a whole.
        """
        raise NotImplementedError

    def update_rows(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Take in more documents; Y has a column for each new label after those of the others.

        Models that can do so override it; whatever goes wrong must leave the model as it was.
        """
        raise NotImplementedError

    # -- settings ---------------------------------------------------------------------------

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Build the model from named settings, whose values may be strings.

        `preset` names one of `presets`, which other settings override; `tfidf.x` sets the
        parameter x of the features that raw texts become.
        """
        named = dict(settings)
        parameters = dict(cls._preset(named.pop("preset"))) if "preset" in named else {}
        text = {key: named.pop(key) for key in list(named) if key.startswith("tfidf.")}
        parameters.update(parse_settings(cls, named, also=("preset", "tfidf.")))
        if text:
            bare = {key.removeprefix("tfidf."): value for key, value in text.items()}
            parameters["tfidf"] = Tfidf(**parse_settings(Tfidf, bare))
        return cls(**parameters)

    @classmethod
    def _preset(cls, name: str) -> Mapping[str, Any]:
        if name not in cls.presets:
            known = ", ".join(cls.presets) or "none"
            raise ParameterError(
                f"{cls.__name__} has no preset '{name}'{suggest(name, cls.presets)} "
                f"(known: {known})"
            )
        return cls.presets[name]

    def get_parameters(self) -> dict[str, Any]:
        """Return the constructor's parameters with the values given, but for `tfidf`."""
        names = inspect.signature(type(self)).parameters
        return {name: getattr(self, name) for name in names if name != "tfidf"}

    def require(self, name: str, condition: bool, range_text: str) -> None:
        """Raise ParameterError with the parameter's name, range and value unless `condition`."""
        if not condition:
            raise ParameterError(
                f"The '{name}' parameter of {type(self).__name__} must be {range_text}. "
                f"Got {getattr(self, name)!r} instead."
            )

    # -- learning and predicting --------------------------------------------------------------

    def fit(self, data: Documents, labels: Any = None, *, progress: Progress = SILENT) -> Self:
        """Learn from a Dataset, from feature rows and Y, or from texts and lists of labels."""
        self.check_parameters()
        dataset = as_dataset(data, labels)
        if dataset.Y.nnz == 0:
            raise DataError(
                f"none of the {dataset.n_documents} documents carries a label; "
                "there is nothing to learn from"
            )
        kind: Kind = "texts" if dataset.X is None else "rows"
        self._check_reads(kind)
        self.fit_documents(dataset, progress)
        self.trained_on = kind
        self.label_names_ = list(dataset.label_names)
        self.training_counts_ = TrainingCounts.of(dataset)
        self.calibration_ = None  # that of an earlier training says nothing about this one
        return self

    def calibrate(
        self, data: Documents, labels: Any = None, *, method: Method = "isotonic"
    ) -> Self:
        """Learn how probable it is that labels of a score are right; see `calibration`.

        Args:
            data: documents that the model was not trained on.
            labels: their labels, as `fit` takes them.
            method: "isotonic" or "logistic".
        """
        self._check_fitted()
        dataset = as_dataset(data, labels)
        self._check_labels(dataset)
        Y = dataset.align(self.label_names_).Y
        top = self.predict(dataset, choose_depth(Y), calibrated=False)
        self.calibration_ = Calibration.fit(top, Y, method, counts=self.training_counts_)
        return self

    def _check_labels(self, dataset: Dataset) -> None:
        """Raise DataError if the documents carry no label that the model knows."""
        carried = {dataset.label_names[label] for label in np.unique(dataset.Y.indices).tolist()}
        if carried.isdisjoint(self.label_names_):
            others = f"they have {len(carried)} others, such as '{min(carried, default='')}'"
            raise DataError(
                f"none of the {len(dataset)} documents carries a label that the model knows; "
                f"{others if carried else 'they have no labels at all'}"
            )

    def partial_fit(
        self,
        data: Documents,
        labels: Any = None,
        *,
        train: bool = False,
        progress: Progress = SILENT,
    ) -> Self:
        """Take in more documents, with labels known or new, where the model can.

        Args:
            data: documents of the kind that the model was trained on.
            labels: their labels, as `fit` takes them.
            train: also go on with training, from the present weights.
            progress: is shown what takes long.
        """
        self.check_updatable()
        self._check_fitted()
        dataset = as_dataset(data, labels)
        X = self._rows_of(dataset)
        if dataset.Y.nnz == 0:
            raise DataError(
                f"none of the {dataset.n_documents} documents carries a label; "
                "there is nothing to add"
            )
        aligned = _only_carried(dataset, self.label_names_).align(self.label_names_)
        self.update_rows(X, aligned.Y, train, progress)
        self.label_names_ = list(aligned.label_names)
        old, new = self.training_counts_, TrainingCounts.of(aligned)
        self.training_counts_ = TrainingCounts(
            old.n_documents + new.n_documents,
            old.padded(len(new.label_counts)) + new.label_counts,
        )
        return self

    def check_updatable(self) -> None:
        """Raise ParameterError if this model cannot take in more documents."""
        from longtail.models import get_model_class, model_names

        def can(model: type[Model]) -> bool:
            return model.update_rows is not Model.update_rows

        if not can(type(self)):
            able = [name for name in model_names() if can(get_model_class(name))]
            raise ParameterError(
                f"{self.name} cannot be updated; models that can: {', '.join(able)}"
            )

    def predict(
        self,
        data: Documents,
        k: int | None = None,
        *,
        threshold: float | str | None = None,
        calibrated: bool = True,
    ) -> TopK:
        """Return the best labels of each document, best first.

        A document without any known feature gets the most frequent labels, each with its share
        of the training documents as score. Pairs that a Dataset excludes are never returned.

        Args:
            data: documents of the kind that the model was trained on.
            k: how many labels at most; 5, or with a threshold as many as the calibration knows.
            threshold: the least probability of a label, from 0 to 1, so that a document may get
                none; "auto" is what gave the best F1 on the documents of the calibration,
                "auto-document" the best mean F1 of single documents.
            calibrated: whether to return probabilities if the model has been calibrated.
        """
        self._check_fitted()
        if k is not None and k < 1:
            raise ParameterError(f"k must be at least 1. Got {k} instead.")
        calibration = self.calibration_ if calibrated else None
        least = None if threshold is None else find_threshold(threshold, calibration)
        if k is None:
            k = USUAL_K if least is None or calibration is None else calibration.depth
        if calibration is None:
            return self._predict_allowed(data, k)
        # Labels may change places, so it takes as many as at calibration to know the first.
        n_ranked = max(k, calibration.depth) if calibration.reorders else k
        own = self._predict_allowed(data, n_ranked)
        top = self._keep_shares(own, calibration.apply(own)).first(k)
        return top if least is None else top.above(least)

    def _keep_shares(self, own: TopK, calibrated: TopK) -> TopK:
        """Leave the documents alone that got the most frequent labels: shares are probable."""
        labels, shares = self.frequent_labels(own.k)
        usual = ((own.labels == labels) & (own.scores == shares)).all(axis=1, keepdims=True)
        return TopK(
            np.where(usual, own.labels, calibrated.labels),
            np.where(usual, own.scores, calibrated.scores),
        )

    def _predict_allowed(self, data: Documents, k: int) -> TopK:
        """Return the model's own scores for the best labels that are not excluded."""
        documents = self.check_documents(data)
        k = min(k, len(self.label_names_))
        exclude = _excluded(data, self.label_names_)
        if exclude is None:
            return self.predict_documents(documents, k)
        enough = min(k + int(np.diff(exclude.indptr).max()), len(self.label_names_))
        return self.predict_documents(documents, enough).without(exclude, k)

    def frequent_labels(self, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the `k` most frequent labels, each with its share of the training documents."""
        counts = self.training_counts_
        frequent = counts.by_frequency[:k]
        shares = counts.label_counts[frequent] / counts.n_documents
        return frequent, shares.astype(np.float32)

    def explain(
        self, document: str | sp.spmatrix | sp.sparray, label: str | None = None
    ) -> Explanation:
        """Say which words of a document weigh how much, in general or for one label.

        Args:
            document: a text, or one feature row for a model of rows.
            label: the name of a label; None asks what the model looks at whatever the label.
        """
        self.check_explains()
        self._check_fitted()
        text = document if isinstance(document, str) else None
        X = self._rows_of([document] if isinstance(document, str) else document)
        if X.shape[0] != 1:
            raise DataError(f"one document can be explained at a time; got {X.shape[0]}")
        weights = self.explain_row(X, None if label is None else self._find_label(label))
        return explain_terms(text, label, self.features_, X.indices, weights)

    def _find_label(self, name: str) -> int:
        names = list(self.label_names_)
        if name not in names:
            raise ParameterError(f"the model knows no label '{name}'{suggest(name, names)}")
        return names.index(name)

    def check_explains(self) -> None:
        """Raise ParameterError if this model cannot explain what it does."""
        from longtail.models import get_model_class, model_names

        def can(model: type[Model]) -> bool:
            return model.explain_row is not Model.explain_row or model.explain is not Model.explain

        if not can(type(self)):
            able = [name for name in model_names() if can(get_model_class(name))]
            raise ParameterError(
                f"{self.name} cannot explain itself; models that can: {', '.join(able)}"
            )

    def _check_reads(self, kind: Kind) -> None:
        """Raise DataError if this model cannot be trained on documents of this kind."""
        from longtail.models import get_model_class, model_names

        if kind not in self.reads:
            able = [name for name in model_names() if kind in get_model_class(name).reads]
            got = "texts" if kind == "texts" else "feature rows"
            raise DataError(
                f"{self.name} cannot be trained on {got}; models that can: {', '.join(able)}"
            )

    def check_documents(self, data: Documents) -> list[str] | sp.csr_matrix:
        """Return the documents as texts or rows, after checking that this model can read them."""
        documents = as_documents(data)
        if isinstance(documents, list):
            if self.trained_on == "rows":
                raise DataError(
                    f"this model was trained on feature rows with {self.n_features_} columns and "
                    "cannot read texts; give it rows, or train a model on texts"
                )
            return documents
        if self.trained_on == "texts":
            raise DataError(
                "this model was trained on texts and cannot read feature rows; "
                "give it texts, or train a model on rows"
            )
        if documents.shape[1] != self.n_features_:
            raise DataError(
                f"the rows have {documents.shape[1]} features, but the model was trained on "
                f"{self.n_features_}; both must come from the same feature space"
            )
        return documents

    def _rows_of(self, data: Documents) -> sp.csr_matrix:
        """Return the documents' feature rows, after checking that this model can read them."""
        return self._as_rows(self.check_documents(data))

    def _as_rows(self, documents: list[str] | sp.csr_matrix) -> sp.csr_matrix:
        if not isinstance(documents, list):
            return documents
        if self.features_ is None:
            raise NotImplementedError(f"{type(self).__name__} makes no rows of texts")
        return self.features_.transform(documents)

    @property
    def may_know_documents(self) -> bool:
        """Whether it builds on a model that may have been trained on the documents to come."""
        return False

    @property
    def training_seconds_(self) -> float | None:
        """Seconds of training, with those before an interruption; None if not recorded."""
        return None

    @property
    def is_fitted(self) -> bool:
        """Whether the model has been trained."""
        return hasattr(self, "label_names_")

    def _check_fitted(self) -> None:
        if not self.is_fitted:
            raise NotFittedError(
                f"this {type(self).__name__} has not been trained yet; call fit first"
            )

    # -- saving -----------------------------------------------------------------------------

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the model to the new folder `path`, whole or not at all."""
        write_folder(path, self.to_files(), overwrite=overwrite)

    def to_files(self) -> Files:
        """Return what `save` writes."""
        self._check_fitted()
        config = {
            "model": self.name,
            "trained_on": self.trained_on,
            "parameters": self.get_parameters(),
            "n_features": self.n_features_,
            "n_documents": self.training_counts_.n_documents,
        }
        files = Files(
            config=config,
            arrays={"label_counts": self.training_counts_.label_counts},
            texts={"label_names": self.label_names_},
        )
        if self.features_ is not None:
            self.features_.to_files(files)
        if self.calibration_ is not None:
            self.calibration_.add_to_files(files)
        self.add_to_files(files)
        return files

    @classmethod
    def from_files(cls, files: Files, path: str | Path) -> Self:
        """Rebuild a model from the files of its folder `path`, which is named in errors."""
        try:
            features = Tfidf.from_files(files) if "features" in files.config else None
            model = cls(**files.config["parameters"])
            model.tfidf = features
            model.label_names_ = files.texts["label_names"]
            counts = files.arrays["label_counts"]
            model.training_counts_ = TrainingCounts(files.config["n_documents"], counts)
            model.features_ = features
            model.trained_on = files.config.get("trained_on", "texts" if features else "rows")
            model.n_features_ = files.config["n_features"]
            model.calibration_ = Calibration.from_files(files)
            model.restore(files)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(
                f"{path}: the files are whole but do not fit together ({error!r}); "
                "train the model again"
            ) from error
        return model


def find_threshold(threshold: float | str, calibration: Calibration | None) -> float:
    """Return the least probability that `threshold` means, or say what is wrong with it."""
    is_number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if not (is_number and 0 <= float(threshold) <= 1) and threshold not in AUTOMATIC:
        raise ParameterError(
            f"The threshold must be a probability from 0 to 1, {' or '.join(AUTOMATIC)}. "
            f"Got {threshold!r} instead."
        )
    if calibration is None:
        raise ParameterError(
            "a threshold needs probabilities, which this model does not give yet; calibrate it "
            "first on documents that it was not trained on: longtail calibrate DIR DATA, or "
            "model.calibrate(data)"
        )
    return calibration.find_threshold(threshold)


def _only_carried(dataset: Dataset, known: Sequence[str]) -> Dataset:
    """Return the documents without labels that are neither known nor carried by any of them."""
    names, known_names = dataset.label_names, set(known)
    numbered = all(name == str(i) for i, name in enumerate(names))
    if numbered and known_names.isdisjoint(names):
        raise DataError(
            f"the labels of the new documents are numbers, 0 to {len(names) - 1}, but those of the "
            f"model have names, such as '{known[0]}'; give the new ones names as well"
        )
    counts = TrainingCounts.of(dataset).label_counts
    kept = [i for i, name in enumerate(names) if counts[i] or name in known_names]
    return replace(
        dataset, Y=dataset.Y[:, kept], label_names=[names[i] for i in kept], exclude=None
    )


def _excluded(data: Documents, label_names: Sequence[str]) -> sp.csr_matrix | None:
    """Return the pairs that must not be predicted, or None if there are none."""
    if not isinstance(data, Dataset) or data.exclude is None or data.exclude.nnz == 0:
        return None
    return data.align(label_names).exclude


def parse_settings(
    target: type, settings: Mapping[str, Any], also: Sequence[str] = ()
) -> dict[str, Any]:
    """Turn string values into what the constructor of `target` expects, by its annotations."""
    parameters = inspect.signature(target).parameters
    hints = get_type_hints(vars(target)["__init__"])
    parsed = {}
    for name, value in settings.items():
        if name not in parameters:
            raise ParameterError(
                f"{target.__name__} has no parameter '{name}'{suggest(name, [*parameters, *also])}"
            )
        parsed[name] = _parse(target, name, value, hints[name])
    return parsed


_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _parse(target: type, name: str, value: Any, hint: Any) -> Any:
    """Turn `value` into the type `hint`, or say what was expected."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options:
        if option is NoneType and (value is None or str(value).lower() == "none"):
            return None
        if get_origin(option) is Literal and value in get_args(option):
            return value
        if option is bool and str(value).lower() in _WORDS:
            return _WORDS[str(value).lower()]
        if option in (int, float, str) and not isinstance(value, bool):
            try:
                return option(str(value))
            except ValueError:
                continue
    expected = " or ".join(_describe(option) for option in options)
    raise ParameterError(
        f"The '{name}' parameter of {target.__name__} must be {expected}. Got {value!r} instead."
    )


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    return names.get(hint, "none")
