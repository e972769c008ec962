"""What all models share: settings, checks, features from raw text, fallback, saving."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset, as_dataset, as_documents
from longtail.errors import DataError, ModelFileError, NotFittedError, ParameterError, suggest
from longtail.evaluation.calibration import AUTOMATIC, Calibration, Method, choose_depth
from longtail.evaluation.explanation import Explanation, Neighbour, explain_terms
from longtail.evaluation.metrics import TrainingCounts
from longtail.labels.state import LabelState
from longtail.labels.vocabulary import Vocabulary
from longtail.models.card import FEW, Card
from longtail.models.cost import MOST_SECONDS, Facts, find_facts, format_seconds
from longtail.models.leaving_out import weigh_cells
from longtail.models.registry import names_of_models
from longtail.progress import SILENT, Progress, shown
from longtail.runtime import memory
from longtail.runtime.schema import (
    Schema,
    Sizes,
    Texts,
    Value,
    counts,
    look_up,
    parameters_of,
    refuse,
    size,
)
from longtail.runtime.settings import (
    check_names,
    check_settings,
    configurable,
    learned,
    parse_settings,
    seeds,
    setting,
    settings_of,
    show_settings,
)
from longtail.runtime.store import Files, write_folder
from longtail.text.tfidf import Tfidf
from longtail.topk import TopK
from longtail.visible import html_table, visible

Documents = Dataset | sp.spmatrix | sp.sparray | Sequence[str] | Any  # a frame of any kind
DocumentType = Literal["texts", "rows"]
Ids = NDArray[np.int32]
Floats = NDArray[np.float32]

BATCH = 4096  # documents predicted between two moves of a progress bar
WORTH_SAYING = 1 << 28  # bytes of memory
RANKED = 1 << 24  # labels that are ranked at once where a model can only score by ranking all
LONG = 60.0  # seconds of training
SHOWN = 3  # labels that are named
DEFAULT_K = 5  # labels for each document, if neither their number nor a threshold is given
SPARE = 32  # labels more to rank at first, where some were merged or dropped
NO_STATE = LabelState()


class HeldOut(NamedTuple):
    """Predictions that training made for documents which it had held out.

    Attributes:
        rows: which of the training documents.
        top: their labels, as scored before calibration.
    """

    rows: NDArray[np.int64]
    top: TopK


@configurable
class Model(ABC):
    """Learns from documents with labels, then ranks labels for other documents."""

    # What it is.
    name: ClassVar[str]  # what `--model` calls it
    summary: ClassVar[str]  # one sentence
    choose_when: ClassVar[str]  # when it is the right choice, one sentence
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # named sets of parameters

    # What it can do.
    reads: ClassVar[tuple[DocumentType, ...]] = ("texts", "rows")  # document types to train on
    makes_rows: ClassVar[bool] = True  # of texts, by tf-idf; False if it reads them by itself
    needs_torch: ClassVar[bool] = False  # for training
    can_update: ClassVar[bool] = False  # takes in more documents: `update_rows`
    trains_on: ClassVar[bool] = True  # with new documents, if an update asks for it
    can_explain: ClassVar[bool] = False  # `explain_row`, or `explain` as a whole
    can_resume: ClassVar[bool] = False  # goes on with training from what is in `run_dir`
    has_embeddings: ClassVar[bool] = False  # places documents by an `embedder_`
    uses_cluster: ClassVar[bool] = False  # trains on `runtime.workers.cluster_in_use`
    plans: ClassVar[bool] = False  # says what it will do before it does: `plan_lines`
    holds_out: ClassVar[bool] = False  # leaves predictions for held-out documents: `held_out_`

    # What it is as a member of a fusion.
    member_order: ClassVar[int | None] = None  # 1 is planned first; None only if it is named
    member_reason: ClassVar[str] = "it was named"  # why a plan takes it
    cheaper_presets: ClassVar[Sequence[str]] = ()  # in place of the defaults, the best first
    milliseconds: ClassVar[float] = 1.0  # for one document, about; only the order counts

    seed: int = setting(0, "fixes everything that is random", seeds())
    tfidf: Tfidf | None = setting(None, "how texts become rows")

    run_dir: Path | None = learned(default=None)  # for log and checkpoints, if it can resume
    resume: bool = learned(default=False)  # go on with what is in `run_dir`
    checkpoint_seconds: float = learned(default=300.0)  # from one checkpoint to the next
    began: float | None = learned(default=None)  # when a budget began to run, by the clock
    stop_at: float | None = learned(default=None)  # when torch's steps must end, by the clock

    trained_on: DocumentType = learned()  # what it was trained on is what it predicts for
    label_names_: Sequence[str] = learned()  # the name of each label
    training_counts_: TrainingCounts = learned()  # documents, and documents of each label
    features_: Tfidf | None = learned(default=None)  # texts to rows; None if it needs none
    n_features_: int = learned(default=0)  # columns of the rows; 0 if it reads no rows
    calibration_: Calibration | None = learned(default=None)  # scores to probabilities
    label_state_: LabelState = learned(default=NO_STATE)  # what labels mean, and became
    card_: Card | None = learned(default=None)  # where it comes from
    held_out_: HeldOut | None = learned(default=None)  # see `holds_out`
    added_: NDArray[np.int64] = learned()  # those of the last update's documents it could use
    _made_of_texts: int = learned(default=0)  # bytes of the rows that training made of texts

    # -- what each model adds ---------------------------------------------------------------

    def check_parameters(self) -> None:
        """Raise ParameterError for the first parameter that is out of range."""
        check_settings(self)

    @classmethod
    def estimate_cost(cls, facts: Facts, preset: str | None = None) -> float:
        """Return about how many seconds one training takes on two cores, or on one GPU.

        A fusion measures instead, where it can; what counts there is how the time grows.
        """
        return 10 + 0.005 * facts.n_documents

    def choose_epochs(self, n_documents: int) -> int:
        """Return how many passes over so many documents there are; 0 for a model without such."""
        return 0

    def work(self, facts: Facts) -> float:
        """Return how much work training is, in any unit: its parameters' part of the time."""
        return 1.0

    def extra_seconds(self, facts: Facts) -> float:
        """Return what the parameters' own work adds to the estimate: nothing, unless overridden."""
        return 0.0

    def estimate_training(self, facts: Facts) -> float:
        """Return about how many seconds training takes with these parameters."""
        usual = type(self)()
        share = self.work(facts) / usual.work(facts)
        return self.estimate_cost(facts) * share + self.extra_seconds(facts)

    def needs_of(self, X: sp.csr_matrix, Y: sp.csr_matrix, device_type: str) -> memory.Needs:
        """Return the stages of training on these rows and what each holds; none if unknown."""
        return ()

    def kept_of(self, X: sp.csr_matrix, Y: sp.csr_matrix) -> int:
        """Return about how many bytes of that the trained model keeps."""
        needs = self.needs_of(X, Y, "cpu")
        return memory.total_ram(needs) // 3 if needs else 0

    @classmethod
    def choose_preset(cls, facts: Facts) -> str | None:
        """Return the preset that suits such data best; None for the defaults."""
        return None

    @abstractmethod
    def add_to_files(self, files: Files) -> None:
        """Add what was learned to the files of the model folder."""

    @abstractmethod
    def describe(self, files: Files) -> Schema:
        """Return the schema of what `add_to_files` adds; nothing in `files` is checked yet.

        Parameters, `label_names_` and `n_features_` are those of the saved model.
        """

    @abstractmethod
    def restore(self, files: Files) -> None:
        """Take back what `add_to_files` wrote, which is as `describe` says."""

    def fit_rows(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> None:
        """Learn from feature rows; there is at least one document with a label.

        A model of rows overrides it; one that reads documents as they are overrides
        `fit_documents` and `predict_documents` instead.
        """
        raise NotImplementedError

    def read_rows(self, X: sp.csr_matrix) -> Any:
        """Return what ranking and scoring begin with, such as embeddings: X, unless overridden."""
        return X

    def predict_rows(self, X: Any, k: int) -> TopK:
        """Rank labels for what `read_rows` made of one row or more; k is at most all labels."""
        raise NotImplementedError

    def score_rows(self, X: Any, candidates: Ids) -> Floats:
        """Score candidates (n, c) for what `read_rows` made of n rows; 0 for -1, which is none.

        A label gets the very bits that `predict_rows` gives it. Unless overridden, all labels are
        ranked to find these scores.
        """
        return self._rank_all(self.predict_rows, X, candidates)

    def fit_documents(self, dataset: Dataset, progress: Progress) -> None:
        """Learn from documents, of which at least one has a label: as rows, unless overridden."""
        features, X = self.learn_features(dataset, progress)
        self._made_of_texts = 0 if features is None else memory.size_of(X) + features.n_bytes
        self.say_time(find_facts(self, X, dataset.Y, features is not None), progress)
        self.fit_features(X, dataset.Y, features, progress)
        self.features_, self.n_features_ = features, int(X.shape[1])

    def learn_features(
        self, dataset: Dataset, progress: Progress
    ) -> tuple[Tfidf | None, sp.csr_matrix]:
        """Return the documents as rows, and what made rows of texts; None if they were rows."""
        if dataset.X is not None:
            return None, dataset.X
        features = (self.tfidf or Tfidf()).copy()
        reading = memory.Stage({"words": features.estimate_bytes(dataset.texts or [])})
        memory.plan_memory((reading,), what="reading the texts")
        progress.stage("reading texts", 1)
        X = features.fit_transform(dataset.texts or [])
        progress.advance(1)
        return features, X

    def predict_documents(self, documents: list[str] | sp.csr_matrix, k: int) -> TopK:
        """Rank labels for documents of the right type: as rows, unless overridden."""
        X = self._as_rows(documents)
        if X.shape[0] == 0:
            return TopK(np.empty((0, k), np.int32), np.empty((0, k), np.float32))
        return self.fill_empty(self.predict_rows(self.read_rows(X), k), X)

    def score_documents(self, documents: list[str] | sp.csr_matrix, candidates: Ids) -> Floats:
        """Score candidates (n, c) for documents of the right type: as rows, unless overridden.

        A model that makes no rows of texts overrides it as well; otherwise it ranks all labels.
        """
        if candidates.size == 0:
            return np.zeros(candidates.shape, np.float32)
        if not self.makes_rows:
            return self._rank_all(self.predict_documents, documents, candidates)
        X = self._as_rows(documents)
        return self.fill_empty_scores(self.score_rows(self.read_rows(X), candidates), candidates, X)

    def fill_empty_scores(self, scores: Floats, candidates: Ids, X: sp.csr_matrix) -> Floats:
        """Give candidates of rows without any feature their shares, in place."""
        empty = np.flatnonzero(np.diff(X.indptr) == 0)
        if len(empty):
            scores[empty] = self.share_of(candidates[empty])
        return scores

    def _rank_all(
        self, predict: Callable[[Any, int], TopK], documents: Any, candidates: Ids
    ) -> Floats:
        """Rank all labels, some documents at a time, and return the candidates' scores."""
        n_labels = len(self.label_names_)
        size = max(1, RANKED // n_labels)
        parts = [
            look_up_scores(predict(documents[a : a + size], n_labels), candidates[a : a + size])
            for a in range(0, len(candidates), size)
        ]
        return np.concatenate(parts)

    def share_of(self, candidates: Ids) -> Floats:
        """Return the labels' shares of the training documents: scores without features."""
        counts = self.training_counts_
        shares = (counts.label_counts / counts.n_documents).astype(np.float32)
        return np.where(candidates >= 0, shares[candidates], np.float32(0))

    def fill_empty(self, top: TopK, X: sp.csr_matrix) -> TopK:
        """Give rows without any feature the most frequent labels, in place."""
        empty = np.flatnonzero(np.diff(X.indptr) == 0)
        if len(empty):
            top.labels[empty], top.scores[empty] = self.frequent_labels(top.k)
        return top

    def fit_features(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, features: Tfidf | None, progress: Progress
    ) -> None:
        """Learn from the rows that `features` made of texts; None if they came as rows."""
        self.fit_rows(X, Y, progress)

    def explain_row(self, X: sp.csr_matrix, label: int | None) -> NDArray[np.float32]:
        """Return how much each cell of the one row X weighs, in general or for one label.

        Unless overridden, that is what the label, or the best ones, lose without it.
        """
        best = min(DEFAULT_K, len(self.label_names_))
        asked = self.predict_documents(X, best).labels[0] if label is None else np.array([label])
        labels = asked[asked >= 0].astype(np.int32)
        return weigh_cells(
            X, lambda rows: self.score_documents(rows, np.tile(labels, (rows.shape[0], 1)))
        )

    def explain_parts(self, X: sp.csr_matrix) -> Mapping[str, NDArray[np.float32]]:
        """Return what such weights are made of, for each cell; nothing, unless overridden."""
        return {}

    def find_similar(self, X: sp.csr_matrix, label: int | None) -> Sequence[Neighbour]:
        """Return training documents near the one row X, where the model knows any."""
        return ()

    def plan_lines(self, data: Documents, labels: Any = None) -> list[str]:
        """Return what training on these documents would do, where the model plans."""
        raise NotImplementedError

    def keep_snippets(self, texts: Sequence[str]) -> None:
        """Keep the beginnings of the texts that the rows of training came from, if of use."""
        return

    def add_snippets(self, texts: Sequence[str]) -> None:
        """Keep those of the texts that the rows of an update came from, behind the others."""
        return

    def update_documents(
        self, dataset: Dataset, X: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Take in more documents, X as rows; as `update_rows` says, which it calls."""
        self.update_rows(X, dataset.Y, train, progress)

    def update_rows(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Take in more documents; Y has a column for each new label after those of the others.

        Each document has a label and a feature; their numbers in what was given are `added_`.
        Whatever goes wrong must leave the model as it was.
        """
        raise NotImplementedError

    # -- settings ---------------------------------------------------------------------------

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Build the model from named settings, whose values may be strings, and check them.

        `preset` names one of `presets`, which other settings override; `tfidf.x` sets the
        parameter x of the features that raw texts become.
        """
        named = dict(settings)
        preset = named.pop("preset", None)
        text = {key: named.pop(key) for key in list(named) if key.startswith("tfidf.")}
        parameters = parse_settings(cls, named, also=("preset", "tfidf."))
        if text:
            bare = {key.removeprefix("tfidf."): value for key, value in text.items()}
            parameters["tfidf"] = Tfidf(**parse_settings(Tfidf, bare))
        return cls._build(parameters) if preset is None else cls.preset(str(preset), **parameters)

    @classmethod
    def preset(cls, name: str, /, **parameters: Any) -> Self:
        """Build the model that one of `presets` names, and check it.

        Parameters given here override those of the preset: `GLaS.preset("paper", dim=512)`.
        """
        if name not in cls.presets:
            known = ", ".join(cls.presets) or "none"
            raise ParameterError(
                f"{cls.__name__} has no preset '{name}'{suggest(name, cls.presets)} "
                f"(known: {known})"
            )
        check_names(cls, parameters)
        return cls._build({**cls.presets[name], **parameters})

    @classmethod
    def _build(cls, parameters: Mapping[str, Any]) -> Self:
        model = cls(**parameters)
        model.check_parameters()
        return model

    @classmethod
    def has_parameter(cls, name: str) -> bool:
        """Whether the constructor takes a parameter of this name."""
        return name in settings_of(cls)

    def get_parameters(self) -> dict[str, Any]:
        """Return the constructor's parameters with the values given, but for `tfidf`."""
        return {name: getattr(self, name) for name in settings_of(type(self)) if name != "tfidf"}

    def with_parameters(self, **other: Any) -> Self:
        """Return an untrained model with the same parameters but for those given."""
        return type(self)(**{**self.get_parameters(), "tfidf": self.tfidf, **other})

    def require(self, name: str, condition: bool, range_text: str) -> None:
        """Raise ParameterError with the parameter's name, range and value unless `condition`."""
        if not condition:
            raise ParameterError(
                f"The '{name}' parameter of {type(self).__name__} must be {range_text}. "
                f"Got {getattr(self, name)!r} instead."
            )

    # -- memory ---------------------------------------------------------------------------------

    def say_memory(
        self,
        needs: Callable[[Self], memory.Needs],
        others: Sequence[Mapping[str, Any]],
        progress: Progress,
        device_type: str = "cpu",
    ) -> None:
        """Say what training will take, or stop and say which of `others` parameters would fit.

        `needs` returns what a model with given parameters takes. Little memory goes without saying,
        but for networks, which take more than their documents let expect.
        """

        def try_others() -> dict[str, memory.Needs]:
            return {
                ", ".join(f"{name}={value}" for name, value in other.items()): needs(
                    self.with_parameters(**other)
                )
                for other in others
            }

        made = {"rows of texts": self._made_of_texts}
        own = [stage.also(made) for stage in needs(self)]
        plan = memory.plan_memory(own, device=device_type, alternatives=try_others)
        if self.needs_torch or memory.total_ram(own) >= WORTH_SAYING:
            progress.say(f"Memory: {plan}")

    def say_time(self, facts: Facts, progress: Progress) -> None:
        """Say how long training takes if that is long; stop where a parameter makes it absurd."""
        seconds = self.estimate_training(facts)
        if seconds > MOST_SECONDS:
            self._refuse_time(seconds, facts)
        if seconds >= LONG:
            progress.say(f"Time: training takes about {format_seconds(seconds)}")

    def _refuse_time(self, seconds: float, facts: Facts) -> None:
        """Raise ParameterError with the parameter that costs the most; data alone are no error."""
        usual = {each.name: each.default for each in settings_of(type(self)).values()}
        given = {k: v for k, v in self.get_parameters().items() if v != usual[k]}
        times = {k: self.with_parameters(**{k: usual[k]}).estimate_training(facts) for k in given}
        name = min(times, key=lambda k: times[k], default=None)
        if name is None or times[name] > seconds / 2:
            return
        raise ParameterError(
            f"training would take about {format_seconds(seconds)} with {name}={given[name]}, and "
            f"about {format_seconds(times[name])} without that; choose a smaller {name}"
        )

    # -- learning and predicting --------------------------------------------------------------

    def fit(
        self,
        data: Documents,
        labels: Any = None,
        *,
        text: str | Sequence[str] | None = None,
        progress: Progress | bool = SILENT,
    ) -> Self:
        """Learn from documents and their labels.

        Args:
            data: a Dataset, feature rows, a list of texts, or a frame of any kind.
            labels: Y, or a list of labels for each document, or the name of a frame's column.
            text: the column of a frame that holds the text, or several.
            progress: is shown what takes long; True shows bars in a terminal, lines elsewhere.
        """
        self.check_parameters()
        dataset = as_dataset(data, labels, text=text)
        if dataset.Y.nnz == 0:
            raise DataError(
                f"none of the {dataset.n_documents} documents carries a label; "
                "there is nothing to learn from"
            )
        document_type: DocumentType = "texts" if dataset.X is None else "rows"
        self._check_reads(document_type)
        with shown(progress) as shows:
            self.fit_documents(dataset, shows)
        self.trained_on = document_type
        self.label_names_ = list(dataset.label_names)
        self.training_counts_ = TrainingCounts.of(dataset)
        self.calibration_ = None  # that of an earlier training says nothing about this one
        self.label_state_ = NO_STATE
        if dataset.label_uris:
            self.label_state_ = LabelState.of(Vocabulary.of_uris(dataset.label_uris), dataset)
        self.card_ = Card.begin(self.name, dataset)
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
        dataset = self.read_labels(as_dataset(data, labels))
        self._check_labels(dataset)
        Y = dataset.align(self.label_names_).Y
        top = self.predict(dataset, choose_depth(Y), calibrated=False)
        self.calibration_ = Calibration.fit(top, Y, method, counts=self.training_counts_)
        self.note_event(f"calibrated on {len(dataset):,} documents")
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
        progress: Progress | bool = SILENT,
    ) -> Self:
        """Take in more documents, with labels known or new, where the model can.

        Documents without a label, or without any feature that the model knows, are left out: they
        could vote for nothing. So are new labels that only such documents carry.

        Args:
            data: documents of the type that the model was trained on.
            labels: their labels, as `fit` takes them.
            train: also go on with training, from the present weights.
            progress: is shown what takes long; True shows it on stderr.
        """
        self.check_updatable()
        self._check_fitted()
        if train and not self.trains_on:
            raise ParameterError(
                f"{self.name} has nothing to train further; leave out train (--train)"
            )
        dataset = self.read_labels(as_dataset(data, labels), progress)
        X = self._rows_of(dataset)
        if dataset.Y.nnz == 0:
            raise DataError(
                f"none of the {dataset.n_documents} documents carries a label; "
                "there is nothing to add"
            )
        _check_names(dataset, self.label_names_)
        useful = np.flatnonzero((np.diff(dataset.Y.indptr) > 0) & (np.diff(X.indptr) > 0))
        if not len(useful):
            raise DataError(
                f"none of the {dataset.n_documents} documents has both a label and a feature that "
                "the model knows; there is nothing to add"
            )
        taken = dataset.take(useful)
        aligned = _only_carried(taken, self.label_names_).align(self.label_names_)
        self.added_ = useful
        with shown(progress) as shows:
            _say_left_out(dataset, taken, self.label_names_, shows)
            self.update_documents(aligned, X[useful], train, shows)
        self.label_names_ = list(aligned.label_names)
        self.label_state_ = self.label_state_.widen(len(self.label_names_))
        old, new = self.training_counts_, TrainingCounts.of(aligned)
        self.training_counts_ = TrainingCounts(
            old.n_documents + dataset.n_documents,
            old.padded(len(new.label_counts)) + new.label_counts,
        )
        self.note_event(f"{len(useful):,} documents added")
        return self

    @property
    def n_kept(self) -> int:
        """How many documents it has: those that it keeps, where it keeps any."""
        return self.training_counts_.n_documents

    def check_updatable(self) -> None:
        """Raise ParameterError if this model cannot take in more documents."""
        if not self.can_update:
            able = names_of_models(lambda model: model.can_update)
            raise ParameterError(f"{self.name} cannot be updated; models that can: {able}")

    def predict(
        self,
        data: Documents,
        k: int | None = None,
        *,
        text: str | Sequence[str] | None = None,
        threshold: float | str | None = None,
        language: str | None = None,
        calibrated: bool = True,
        progress: Progress | bool = SILENT,
    ) -> TopK:
        """Return the best labels of each document, best first.

        A document without any known feature gets the most frequent labels, each with its share
        of the training documents as score. Pairs that a Dataset excludes are never returned.

        Args:
            data: documents of the type that the model was trained on.
            k: how many labels at most; 5, or with a threshold as many as the calibration knows.
            text: the column of a frame that holds the text, or several.
            threshold: the least probability of a label, from 0 to 1, so that a document may get
                none; "auto" is what gave the best F1 on the documents of the calibration,
                "auto-document" the best mean F1 of single documents.
            language: name labels in this language of the model's vocabulary, such as "fi".
            calibrated: whether to return probabilities if the model has been calibrated.
            progress: is shown how many documents are labelled; True shows it on stderr.
        """
        self._check_fitted()
        if k is not None and k < 1:
            raise ParameterError(f"k must be at least 1. Got {k} instead.")
        if text is not None:
            data = as_documents(data, text=text)
        names = self.label_names_ if language is None else self.names_in(language)
        calibration = self.calibration_ if calibrated else None
        least = None if threshold is None else find_threshold(threshold, calibration)
        if k is None:
            k = DEFAULT_K if least is None or calibration is None else calibration.depth
        predict = self._predict_own if self.label_state_.targets is None else self._predict_edited
        with shown(progress) as shows:
            top = predict(data, k, calibration, shows)
        named = replace(top, label_names=names, label_uris=self.label_uris)
        return named if least is None else named.above(least)

    def _predict_own(
        self, data: Documents, k: int, calibration: Calibration | None, progress: Progress
    ) -> TopK:
        """Return the best of the labels that the model was trained with."""
        # Labels may change places, so it takes as many as at calibration to know the first.
        n_ranked = max(k, calibration.depth) if calibration and calibration.reorders else k
        top = self._predict_allowed(data, n_ranked, progress)
        if calibration is None:
            return top
        return self._keep_shares(top, calibration.apply(top)).first(k)

    def _predict_edited(
        self, data: Documents, k: int, calibration: Calibration | None, progress: Progress
    ) -> TopK:
        """Return the best labels as they are given now, of as many as it takes to find them."""
        documents = self.check_documents(data)
        exclude = _excluded(data, self.label_names_)

        def score(rows: NDArray[np.int64], candidates: Ids) -> Floats:
            some = (
                [documents[row] for row in rows] if isinstance(documents, list) else documents[rows]
            )
            return self._score_own(some, candidates, calibration)

        n_labels, depth = len(self.label_names_), k + SPARE
        while True:
            own = self._predict_own(data, depth, calibration, progress)
            top = self.label_state_.edit(own, score)
            top = top if exclude is None else top.without(exclude, top.k)
            found, at_end = (top.labels >= 0).sum(axis=1), own.labels[:, -1:] < 0
            if depth >= n_labels or ((found >= k) | at_end.any(axis=1)).all():
                return top.first(k)
            depth = min(4 * depth, n_labels)

    def _keep_shares(self, own: TopK, calibrated: TopK) -> TopK:
        """Leave the documents alone that got the most frequent labels: shares are probable."""
        usual = self._are_usual(own)
        return TopK(
            np.where(usual, own.labels, calibrated.labels),
            np.where(usual, own.scores, calibrated.scores),
        )

    def _are_usual(self, own: TopK) -> NDArray[np.bool_]:
        """Return (n, 1) which documents got the most frequent labels, having no known feature."""
        labels, shares = self.frequent_labels(own.k)
        same = (own.labels == labels) & (own.scores == shares)
        usual: NDArray[np.bool_] = same.all(axis=1, keepdims=True)
        return usual

    def _predict_allowed(self, data: Documents, k: int, progress: Progress) -> TopK:
        """Return the model's own scores for the best labels that are not excluded."""
        documents = self.check_documents(data)
        k = min(k, len(self.label_names_))
        exclude = _excluded(data, self.label_names_)
        more = 0 if exclude is None else int(np.diff(exclude.indptr).max())
        enough = min(k + more, len(self.label_names_))
        top = self._predict_in_batches(documents, enough, progress)
        _check_finite(top.scores)
        return top if exclude is None else top.without(exclude, k)

    def _predict_in_batches(
        self, documents: list[str] | sp.csr_matrix, k: int, progress: Progress
    ) -> TopK:
        """Predict in one go, or in batches if somebody wants to see progress."""
        n = len(documents) if isinstance(documents, list) else documents.shape[0]
        if progress is SILENT or n <= BATCH:
            return self.predict_documents(documents, k)
        tops = []
        progress.stage("labelling", n)
        for start in range(0, n, BATCH):
            tops.append(self.predict_documents(documents[start : start + BATCH], k))
            progress.advance(len(tops[-1]))
        return TopK.concatenate(tops)

    def score(
        self, data: Documents, candidates: Any, *, calibrated: bool = True
    ) -> NDArray[np.float32]:
        """Return the scores (n, c) of given labels of each document.

        A label gets the very score that `predict` gives it. Labels that `predict` would not reach,
        outside of a beam or of what an index finds, get their true score. Pairs that a Dataset
        excludes are scored like others.

        A calibrated probability also depends on a label's place in the list of its document. So
        a calibrated model predicts as well, and labels that are not in its list come behind it.

        Args:
            data: documents of the type that the model was trained on.
            candidates: (n, c) the numbers of labels, places in `label_names_`; -1 is none, and its
                score is 0.
            calibrated: whether to return probabilities if the model has been calibrated.
        """
        self._check_fitted()
        documents = self.check_documents(data)
        n = len(documents) if isinstance(documents, list) else documents.shape[0]
        labels = check_candidates(candidates, n, len(self.label_names_))
        calibration = self.calibration_ if calibrated else None
        if self.label_state_.targets is None:
            return self._score_own(documents, labels, calibration)
        return self.label_state_.score(
            labels, lambda parts: self._score_own(documents, parts, calibration)
        )

    def _score_own(
        self, documents: list[str] | sp.csr_matrix, labels: Ids, calibration: Calibration | None
    ) -> Floats:
        """Return the scores of labels that the model was trained with."""
        scores = self.score_documents(documents, labels)
        _check_finite(scores)
        if calibration is None:
            return scores
        k = min(calibration.n_placed, len(self.label_names_))
        own = self.predict_documents(documents, k)
        placed = self._keep_shares(own, calibration.apply(own))
        found = calibration.apply_behind(scores, placed.scores[:, -1:])
        found = np.where(self._are_usual(own), scores, found)
        return np.where(labels >= 0, look_up_scores(placed, labels, found), np.float32(0))

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
        parts = self.explain_parts(X)
        return explain_terms(text, label, self.features_, X.indices, weights, parts)

    def _find_label(self, name: str) -> int:
        names = list(self.label_names_)
        if name not in names:
            raise ParameterError(f"the model knows no label '{name}'{suggest(name, names)}")
        return names.index(name)

    def check_explains(self) -> None:
        """Raise ParameterError if this model cannot explain what it does."""
        if not self.can_explain:
            able = names_of_models(lambda model: model.can_explain)
            raise ParameterError(
                f"{self.name} cannot explain its predictions; models that can: {able}"
            )

    def _check_reads(self, document_type: DocumentType) -> None:
        """Raise DataError if this model cannot be trained on documents of this type."""
        if document_type not in self.reads:
            got = "texts" if document_type == "texts" else "feature rows"
            able = names_of_models(lambda model: document_type in model.reads)
            raise DataError(f"{self.name} cannot be trained on {got}; models that can: {able}")

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

    # -- its labels -----------------------------------------------------------------------------

    @property
    def label_uris(self) -> Sequence[str | None] | None:
        """The URI of each label, None for those without; None if no label has one."""
        return self.label_state_.uris

    def names_in(self, language: str) -> list[str]:
        """Return what labels are called in a language of the vocabulary."""
        self._check_fitted()
        return self.label_state_.names_in(language, self.label_names_)

    @property
    def finds_names(self) -> bool:
        """Whether it finds labels by their names, also those without documents: `add_names`."""
        return False

    def add_names(self, names: Sequence[tuple[int, str]]) -> None:
        """Find labels by further names as well; the last of `label_names_` may be new."""
        raise NotImplementedError

    def say_unseen(self) -> str:
        """Say how well labels without documents are found, where it finds names."""
        raise NotImplementedError

    def set_label_names(self, names: Sequence[str]) -> None:
        """Give labels other names; further ones at the end are labels without documents."""
        self.label_names_ = list(names)
        self.label_state_ = self.label_state_.widen(len(names))
        counts = self.training_counts_
        self.training_counts_ = TrainingCounts(counts.n_documents, counts.padded(len(names)))

    @property
    def current_counts(self) -> TrainingCounts:
        """The training documents of labels as they are given now, at most; see `label_state_`."""
        counts = self.training_counts_
        found = self.label_state_.count(counts.label_counts, counts.n_documents)
        return TrainingCounts(counts.n_documents, found)

    def read_labels(self, dataset: Dataset, progress: Progress | bool = SILENT) -> Dataset:
        """Return documents whose labels have the names that the model has for them.

        By its vocabulary, URIs and other names become the model's own; labels that were merged
        become what they were merged into, and those that were dropped are passed over.
        """
        self._check_fitted()
        found, notes = self.label_state_.read(dataset, self.label_names_)
        with shown(progress) as shows:
            for note in notes:
                shows.say(f"Note: {note}.")
        return found

    # -- where it comes from ------------------------------------------------------------------

    def make_card(self) -> Card:
        """Return the card, with what the model itself knows now; see `longtail.models.card`."""
        self._check_fitted()
        settings = self.get_parameters()
        if self.features_ is not None:
            features = settings_of(Tfidf)
            settings |= {f"tfidf.{name}": getattr(self.features_, name) for name in features}
        card = self.card_ or Card(self.name, trained="at an unknown time")
        notes, limits = self.describe_training(), self._find_limits()
        return replace(card, settings=settings, notes=notes, limits=limits)

    def describe_training(self) -> Sequence[str]:
        """Return what else the card should say about training; nothing, unless overridden."""
        return ()

    def note_event(self, event: str) -> None:
        """Write into the card what happened to the model."""
        if self.card_ is not None:
            self.card_ = self.card_.add_to_history(event)

    def _find_limits(self) -> list[str]:
        """Say what not to expect of this model."""
        carried = self.training_counts_.label_counts[self.training_counts_.label_counts > 0]
        n_few = int((carried < FEW).sum())
        few = f" {n_few:,} of them had fewer than {FEW} documents and are seldom found."
        limits = [
            f"It gives none but the {len(carried):,} labels that its training documents carry."
            f"{few if n_few else ''}",
            "A document without any known word or feature gets the most frequent labels.",
        ]
        if self.trained_on == "rows":
            limits.append(f"It reads rows of {self.n_features_:,} features, made as in training.")
        if self.calibration_ is None:
            limits.append("Its scores order labels; they are no probabilities.")
        else:
            limits.append(
                f"Its scores are probabilities, learned from {self.calibration_.n_documents:,} "
                "documents: they hold for documents of the same kind."
            )
        return limits

    def __repr__(self) -> str:
        """Return the parameters that are not the default, and where the model comes from."""
        if not self.is_fitted:
            return show_settings(self)
        return "\n  ".join([show_settings(self), *self._summarize()])

    def _repr_html_(self) -> str:
        """Return the same as a table for notebooks, with all parameters."""
        title = "; ".join([type(self).__name__, *self._summarize()])
        values = self.get_parameters().items()
        return html_table(title, ["parameter", "value"], [[name, str(v)] for name, v in values])

    def _summarize(self) -> list[str]:
        """Say what it knows, where it comes from and how good it is, each in a line."""
        if not self.is_fitted:
            return ["not trained yet"]
        origin = "" if self.card_ is None else f", {visible(self.card_.summary)}"
        lines = [f"{len(self.label_names_):,} labels{origin}"]
        metrics = {} if self.card_ is None else self.card_.metrics
        shown = [f"{name} {metrics[name]:.1f}" for name in ("P@1", "P@3", "P@5") if name in metrics]
        return [*lines, f"on held-out documents: {', '.join(shown)}"] if shown else lines

    # -- saving -----------------------------------------------------------------------------

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the model to the new folder `path`, whole or not at all."""

        def make_card(n_bytes: int) -> tuple[str, str]:
            card = replace(self.make_card(), n_bytes=n_bytes)
            return card.to_json(), card.to_page()

        write_folder(path, self.to_files(), overwrite=overwrite, make_card=make_card)

    def to_files(self) -> Files:
        """Return what `save` writes."""
        self._check_fitted()
        config = {
            "model": self.name,
            "package": type(self).__module__.partition(".")[0],
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
        self.label_state_.add_to_files(files)
        self.add_to_files(files)
        return files

    @classmethod
    def from_files(cls, files: Files, path: str | Path) -> Self:
        """Rebuild a model from the files of its folder `path`, which is named in errors.

        They may be a stranger's, so all of them are checked before a model takes anything from
        them: first what all models have, then what the parameters say that this one has.
        """
        try:
            sizes: Sizes = {}
            cls._describe_shared(files).check(files, sizes)
            model = cls(**files.config["parameters"])
            model.label_names_ = files.texts["label_names"]
            label_counts = files.arrays["label_counts"]
            model.training_counts_ = TrainingCounts(files.config["n_documents"], label_counts)
            model.trained_on = files.config["trained_on"]
            model.n_features_ = files.config["n_features"]
            model.describe(files).check(files, sizes)
            model.describe_all(files).check_names(files)
            model.features_ = Tfidf.from_files(files) if "features" in files.config else None
            model.tfidf = model.features_
            model.calibration_ = Calibration.from_files(files)
            model.label_state_ = LabelState.from_files(files)
            model.restore(files)
            model.card_ = None if files.card is None else Card.from_json(files.card)
        except ModelFileError as error:  # of a part, which does not know the folder
            raise ModelFileError(f"{path}: {error}") from error
        except ValueError as error:
            raise refuse(path, error) from error
        return model

    def describe_all(self, files: Files) -> Schema:
        """Return the schema of a whole folder with this model."""
        return self._describe_shared(files) | self.describe(files)

    @classmethod
    def _describe_shared(cls, files: Files) -> Schema:
        """Return the schema of what all models have."""
        shared = Schema(
            config={
                "model": Value(str),
                "package": Value(str),
                "trained_on": Value(Literal[cls.reads]),
                "parameters": parameters_of(cls, without=("tfidf",)),
                "n_features": size("n_features", least=0),
                "n_documents": size("n_documents"),
            },
            arrays={"label_counts": counts("n_labels", most="n_documents")},
            texts={"label_names": Texts("n_labels", unique=True)},
        )
        if cls.makes_rows and look_up(files.config, "trained_on") == "texts":
            shared |= Tfidf.describe()
        if "calibration" in files.config:
            shared |= Calibration.describe()
        return shared | LabelState.describe(files)


def check_candidates(candidates: Any, n_documents: int, n_labels: int) -> Ids:
    """Return the candidates as label numbers (n, c), or say what is wrong with them."""
    try:
        given = np.asarray(candidates)
    except ValueError as error:  # lists of different lengths
        raise DataError(
            "the candidates must have as many labels for each document; fill up with -1"
        ) from error
    if given.ndim != 2 or len(given) != n_documents:
        raise DataError(
            f"the candidates must be one row of labels for each of the {n_documents} documents; "
            f"got an array of shape {given.shape}"
        )
    if given.size and not np.issubdtype(given.dtype, np.integer):
        raise DataError(
            f"the candidates must be whole numbers, places in label_names_; got {given.dtype}"
        )
    if given.size and (given.min() < -1 or given.max() >= n_labels):
        wrong = given.min() if given.min() < -1 else given.max()
        raise DataError(
            f"the candidates must be from 0 to {n_labels - 1}, or -1 for none; got {wrong}"
        )
    return np.ascontiguousarray(given, np.int32)


def look_up_scores(top: TopK, labels: Ids, others: Floats | None = None) -> Floats:
    """Return the score of each label (n, c) in its document's list; `others`, or 0, beside it."""
    scores = np.zeros(labels.shape, np.float32) if others is None else others.copy()
    if not labels.size:
        return scores
    width = int(max(labels.max(), top.labels.max())) + 2  # so that no document's -1 is a label
    rows = np.arange(len(labels), dtype=np.int64)[:, None] * width
    keys, wanted = (rows + top.labels).ravel(), rows + labels
    order = np.argsort(keys, kind="stable")
    places = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    found = (keys[places] == wanted) & (labels >= 0)
    scores[found] = top.scores.ravel()[places[found]]
    return scores


def _check_finite(scores: Floats) -> None:
    """Raise DataError for the first document whose scores are no numbers."""
    if not np.isfinite(scores).all():
        first = int(np.flatnonzero(~np.isfinite(scores).all(axis=1))[0])
        raise DataError(
            f"document {first}, counted from 0, gets scores that are not finite numbers; "
            "its feature values are too large for this model"
        )


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


def _check_names(dataset: Dataset, known: Sequence[str]) -> None:
    """Raise DataError if the labels are numbers, and those that the model knows are names."""
    names = dataset.label_names
    numbered = all(name == str(i) for i, name in enumerate(names))
    if numbered and set(known).isdisjoint(names):
        raise DataError(
            f"the labels of the new documents are numbers, 0 to {len(names) - 1}, but those of the "
            f"model have names, such as '{known[0]}'; give the new ones names as well"
        )


def _only_carried(dataset: Dataset, known: Sequence[str]) -> Dataset:
    """Return the documents without labels that are neither known nor carried by any of them."""
    names, known_names = dataset.label_names, set(known)
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


def _say_left_out(given: Dataset, taken: Dataset, known: Sequence[str], progress: Progress) -> None:
    """Say how many documents cannot vote, and which new labels nobody can vote for."""
    if len(taken) == len(given):
        return
    n_left = len(given) - len(taken)
    progress.say(
        f"Note: {n_left:,} of {len(given):,} documents were left out, "
        "as they have no label or no feature that the model knows"
    )
    before, after = (TrainingCounts.of(each).label_counts for each in (given, taken))
    lost = [given.label_names[i] for i in np.flatnonzero((before > 0) & (after == 0)).tolist()]
    new = sorted(set(lost).difference(known))
    if new:
        names = ", ".join(new[:SHOWN]) + (", …" if len(new) > SHOWN else "")
        progress.say(
            f"Note: {len(new):,} new label{'s' * (len(new) > 1)} ({names}) cannot be predicted "
            "and were not added: only documents that were left out carry them"
        )
