"""What each kind of model adds: the attributes and methods that it overrides."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset
from longtail.data.columns import Columns
from longtail.errors import NotFittedError
from longtail.evaluation.calibration import Calibration
from longtail.evaluation.explanation import Neighbour
from longtail.evaluation.metrics import TrainingCounts
from longtail.labels.state import LabelState
from longtail.models.card import Card
from longtail.models.checks import Floats, Ids, look_up_scores
from longtail.models.cost import find_facts
from longtail.models.estimates import Estimated
from longtail.models.leaving_out import weigh_cells
from longtail.models.restraint import Restraint
from longtail.progress import Progress
from longtail.runtime import memory
from longtail.runtime.schema import Schema
from longtail.runtime.settings import configurable, learned
from longtail.runtime.store import Files
from longtail.text.tfidf import Tfidf
from longtail.topk import TopK

Documents = Dataset | sp.spmatrix | sp.sparray | Sequence[str] | Any  # a frame of any kind
DocumentType = Literal["texts", "rows"]

RANKED = 1 << 24  # labels that are ranked at once where a model can only score by ranking all
DEFAULT_K = 5  # labels for each document, if neither their number nor a threshold is given
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
class Contract(Estimated, ABC):
    """What a model is, what it can do, and how: each kind overrides what it does otherwise."""

    # What it is.
    name: ClassVar[str]  # what `--model` calls it
    summary: ClassVar[str]  # one sentence
    choose_when: ClassVar[str]  # when it is the right choice, one sentence

    # What it can do.
    reads: ClassVar[tuple[DocumentType, ...]] = ("texts", "rows")  # document types to train on
    makes_rows: ClassVar[bool] = True  # of texts, by tf-idf; False if it reads them by itself
    can_update: ClassVar[bool] = False  # takes in more documents: `update_rows`
    trains_on: ClassVar[bool] = True  # with new documents, if an update asks for it
    can_explain: ClassVar[bool] = False  # `explain_row`, or `explain` as a whole
    can_resume: ClassVar[bool] = False  # goes on with training from what is in `run_dir`
    has_embeddings: ClassVar[bool] = False  # places documents by an `embedder_`
    uses_cluster: ClassVar[bool] = False  # can be trained on one
    plans: ClassVar[bool] = False  # says what it will do before it does: `plan_lines`
    holds_out: ClassVar[bool] = False  # leaves predictions for held-out documents: `held_out_`

    # What it is as a member of a fusion.
    member_order: ClassVar[int | None] = None  # 1 is planned first; None only if it is named
    member_order_of_rows: ClassVar[int | None] = None  # if it is another where there are no texts
    member_reason: ClassVar[str] = "it was named"  # why a plan takes it
    cheaper_presets: ClassVar[Sequence[str]] = ()  # in place of the defaults, the best first
    milliseconds: ClassVar[float] = 1.0  # for one document, about; only the order counts
    member_seeds: ClassVar[int] = 1  # members of other seeds that a plan takes before rarer models
    least_sample: ClassVar[int] = 500  # documents from which on time grows evenly with them

    run_dir: Path | None = learned(default=None)  # for log and checkpoints, if it can resume
    resume: bool = learned(default=False)  # go on with what is in `run_dir`
    checkpoint_seconds: float = learned(default=300.0)  # from one checkpoint to the next
    began: float | None = learned(default=None)  # when a budget began to run, by the clock
    stop_at: float | None = learned(default=None)  # when torch's steps must end, by the clock
    only_scores: bool = learned(default=False)  # others propose labels: `prepare_search` can wait

    trained_on: DocumentType = learned()  # what it was trained on is what it predicts for
    label_names_: Sequence[str] = learned()  # the name of each label
    training_counts_: TrainingCounts = learned()  # documents, and documents of each label
    features_: Tfidf | None = learned(default=None)  # texts to rows; None if it needs none
    n_features_: int = learned(default=0)  # columns of the rows; 0 if it reads no rows
    calibration_: Calibration | None = learned(default=None)  # scores to probabilities
    label_state_: LabelState = learned(default=NO_STATE)  # what labels mean, and became
    restraint_: Restraint | None = learned(default=None)  # of labels that updates brought
    card_: Card | None = learned(default=None)  # where it comes from
    columns_: Columns | None = learned(default=None)  # of the files it was trained on
    held_out_: HeldOut | None = learned(default=None)  # see `holds_out`
    added_: NDArray[np.int64] = learned()  # those of the last update's documents it could use

    @property
    def choices(self) -> dict[str, Any]:
        """Parameters that training has chosen by the data, and that change what scores mean.

        Another training on like documents takes them over, so that its scores mean the same.
        """
        return {}

    # -- files --------------------------------------------------------------------------------

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

    # -- learning and ranking -----------------------------------------------------------------

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

    def prepare_search(self, X: sp.csr_matrix, progress: Progress) -> None:
        """Make ranking all labels quick, by rows like those to come: nothing, unless overridden.

        `fit` does so, but where the model `only_scores`. Labels and scores stay nearly the same.
        """
        return

    @property
    def has_search(self) -> bool:
        """Whether all labels can be ranked quickly; if not, `prepare_search` makes it so."""
        return True

    def score_rows(self, X: Any, candidates: Ids) -> Floats:
        """Score candidates (n, c) for what `read_rows` made of n rows; 0 for -1, which is none.

        A label gets the very bits that `predict_rows` gives it. Unless overridden, all labels are
        ranked to find these scores.
        """
        return self._rank_all(self.predict_rows, X, candidates)

    def read_texts(self, texts: list[str]) -> Any:
        """Return what ranking and scoring of texts begin with: the texts, unless overridden."""
        return texts

    def predict_texts(self, read: Any, k: int) -> TopK:
        """Rank labels for what `read_texts` made of texts, where these do not become rows."""
        return self.predict_documents(read, k)

    def score_texts(self, read: Any, candidates: Ids) -> Floats:
        """Score candidates (n, c) for what `read_texts` made of n texts; 0 for -1, for none."""
        return self.score_documents(read, candidates)

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

    def frequent_labels(self, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the `k` most frequent labels, each with its share of the training documents."""
        counts = self.training_counts_
        frequent = counts.by_frequency[:k]
        shares = counts.label_counts[frequent] / counts.n_documents
        return frequent, shares.astype(np.float32)

    def _as_rows(self, documents: list[str] | sp.csr_matrix) -> sp.csr_matrix:
        if not isinstance(documents, list):
            return documents
        if self.features_ is None:
            raise NotImplementedError(f"{type(self).__name__} makes no rows of texts")
        return self.features_.transform(documents)

    def plan_lines(self, data: Documents, labels: Any = None) -> list[str]:
        """Return what training on these documents would do, where the model plans."""
        raise NotImplementedError

    # -- explaining -----------------------------------------------------------------------------

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

    def find_examples(self, label: int, n: int) -> Sequence[Neighbour]:
        """Return up to n training documents that carry a label, where the model keeps any."""
        return ()

    def find_near_labels(self, label: int, n: int) -> Sequence[tuple[int, float]]:
        """Return up to n labels like this one, the nearest first, where the model can tell.

        The second number is how near each is: above 0, and 1 for what cannot be told apart.
        """
        return ()

    def keep_snippets(self, texts: Sequence[str]) -> None:
        """Keep the beginnings of the texts that the rows of training came from, if of use."""
        return

    def add_snippets(self, texts: Sequence[str]) -> None:
        """Keep those of the texts that the rows of an update came from, behind the others."""
        return

    # -- updating -------------------------------------------------------------------------------

    def update_documents(
        self, dataset: Dataset, X: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Take in more documents, X as rows; as `update_rows` says, which it calls."""
        self.update_rows(X, dataset.Y, train, progress)

    def update_rows(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Take in more documents; Y has a column for each new label after those of the others.

        Each document has a label and a feature; their numbers in what was given are `added_`. A
        member of a fusion may get new labels that no document carries.
        Whatever goes wrong must leave the model as it was.
        """
        raise NotImplementedError

    def finish_update(self) -> None:
        """Do what an update leaves until the documents are counted: nothing, unless overridden."""
        return

    @property
    def n_kept(self) -> int:
        """How many documents it has: those that it keeps, where it keeps any."""
        return self.training_counts_.n_documents

    # -- labels by their names ------------------------------------------------------------------

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

    # -- what is known about it ---------------------------------------------------------------

    def describe_training(self) -> Sequence[str]:
        """Return what else the card should say about training; nothing, unless overridden."""
        return ()

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
