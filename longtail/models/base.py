"""What users call: fit, calibrate, predict, score, explain and update, for every model."""

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset, as_dataset, as_documents
from longtail.errors import DataError, ParameterError, suggest
from longtail.evaluation.calibration import Calibration, choose_depth
from longtail.evaluation.curve import Method
from longtail.evaluation.explanation import Explanation, explain_terms
from longtail.evaluation.metrics import TrainingCounts
from longtail.labels.state import LabelState
from longtail.labels.vocabulary import Vocabulary
from longtail.models.card import Card
from longtail.models.checks import (
    Floats,
    Ids,
    check_candidates,
    check_finite,
    check_k,
    check_names,
    check_one,
    find_excluded,
    find_threshold,
    look_up_scores,
    only_carried,
    say_left_out,
)
from longtail.models.columns import remember_columns
from longtail.models.contract import DEFAULT_K, NO_STATE, Documents, DocumentType
from longtail.models.new_labels import find_new_labels
from longtail.models.registry import names_of_models
from longtail.models.restraint import (
    DEPTH,
    JUDGED,
    LEAST_JUDGED,
    PARTS,
    PLACES,
    Judgement,
    Restraint,
    choose_judges,
    widen,
)
from longtail.models.saved import Saved
from longtail.progress import SILENT, Progress, shown
from longtail.runtime.mapped import Texts, in_memory, is_mapped
from longtail.runtime.settings import configurable
from longtail.topk import TopK
from longtail.visible import spell_count

BATCH = 4096  # documents predicted between two moves of a progress bar
SPARE = 32  # labels more to rank at first, where some were merged or dropped


@configurable
class Model(Saved):
    """Learns from documents with labels, then ranks labels for other documents."""

    # -- learning ---------------------------------------------------------------------------------

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
                f"of {spell_count(dataset.n_documents, 'document')}, none carries a label; "
                "there is nothing to learn from"
            )
        if dataset.X is not None and dataset.X.nnz == 0:
            raise DataError(
                f"of {spell_count(dataset.n_documents, 'row')}, none holds a feature; "
                "there is nothing to learn from"
            )
        document_type: DocumentType = "texts" if dataset.X is None else "rows"
        self._check_reads(document_type)
        with shown(progress) as shows:
            self.fit_documents(dataset, shows)
        self.trained_on = document_type
        self.label_names_ = list(dataset.label_names)
        self.training_counts_ = TrainingCounts.of(dataset)
        self.restraint_ = None
        self.calibration_ = None  # that of an earlier training says nothing about this one
        self.label_state_ = NO_STATE
        if dataset.label_uris:
            self.label_state_ = LabelState.of(Vocabulary.of_uris(dataset.label_uris), dataset)
        self.card_ = Card.begin(self.name, dataset)
        self.columns_ = remember_columns(dataset)
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
        dataset = self.read_labels(as_dataset(data, labels, like=self.columns_))
        self._check_labels(dataset)
        Y = dataset.align(self.label_names_).Y
        top = self.predict(dataset, choose_depth(Y), calibrated=False)
        self.calibration_ = Calibration.fit(top, Y, method, counts=self.training_counts_)
        self.note_event(f"calibrated on {spell_count(len(dataset), 'document')}")
        return self

    def _check_labels(self, dataset: Dataset) -> None:
        """Raise DataError if the documents carry no label that the model knows."""
        carried = {dataset.label_names[label] for label in np.unique(dataset.Y.indices).tolist()}
        if carried.isdisjoint(self.label_names_):
            n_others = spell_count(len(carried), "other")
            others = f"they have {n_others}, such as '{min(carried, default='')}'"
            raise DataError(
                f"of {spell_count(len(dataset), 'document')}, none carries a label that the model "
                "knows; "
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
        dataset = self._read_more(data, labels, progress)
        with shown(progress) as shows:
            train, factor = self._judge_update(dataset, train, shows)
            before = self.training_counts_
            self.take_in(dataset, train, shows, only_carried_labels=True)
            if factor < 1:
                shows.say(
                    f"New labels get {factor:.2f} of their scores, so that known ones keep their "
                    "places"
                )
        factors = widen(self.restraint_, len(self.label_names_))
        factors[self._are_new(before) & (factors == 1)] = factor
        self.restraint_ = Restraint(factors) if (factors < 1).any() else None
        return self

    def _judge_update(
        self, dataset: Dataset, train: bool, progress: Progress
    ) -> tuple[bool, float]:
        """Return whether to train, and what the scores of new labels must be multiplied by."""
        aligned = only_carried(dataset, self.label_names_).align(self.label_names_)
        new = find_new_labels(self.training_counts_, aligned.Y)
        trains = train and self.trains_on
        if not (len(new) or trains) or len(dataset) < LEAST_JUDGED:
            return train, 1.0
        judges = choose_judges(aligned.Y, new)
        judgement = self._try_update(dataset, judges, trains, progress)
        if trains and judgement is not None and judgement.lost > 0:
            progress.say(
                f"Training would cost known labels {judgement.lost:.1%} of the first places: "
                "updated without"
            )
            return self._judge_update(dataset, False, progress)
        return train, 1.0 if judgement is None else judgement.choose_factor()

    def _try_update(
        self, dataset: Dataset, judges: NDArray[np.int64], train: bool, progress: Progress
    ) -> Judgement | None:
        """Let copies take in most of the documents and label some of the others; see `restraint`.

        Large updates need one copy, as there are enough judges among the others.
        """
        n_left = min(JUDGED, len(judges))
        progress.stage("judging the update", n_left)
        order = np.random.default_rng(0).permutation(len(dataset))
        found: list[Judgement] = []
        for part in np.array_split(order, PARTS):
            trial, judged = copy(self), np.intersect1d(part, judges)[:n_left]
            if not len(judged):
                continue
            with suppress(DataError):  # nothing in the others is of use
                others = dataset.take(np.setdiff1d(order, part))
                trial.take_in(others, train, SILENT, only_carried_labels=True)
                found.append(trial._judge(self, dataset.take(judged)))
            progress.advance(len(judged))
            n_left -= len(judged)
        return Judgement.join(found) if found else None

    def _judge(self, before: "Model", judged: Dataset) -> Judgement:
        """Return what the update of before to this model does to the labels of documents."""
        documents, n_labels = in_memory(self.check_documents(judged)), len(self.label_names_)
        is_new = self._are_new(before.training_counts_)
        factors = widen(self.restraint_, n_labels)
        factors[is_new] = 0
        places = min(PLACES, len(before.label_names_))
        known = Restraint(factors).rank(
            lambda depth: self.predict_documents(documents, depth), places
        )
        return Judgement.of(
            before._rank(documents, places),
            known,
            self._rank(documents, min(DEPTH, n_labels)),
            judged.align(self.label_names_).Y[:, :n_labels],
            is_new,
        )

    def _are_new(self, before: TrainingCounts) -> NDArray[np.bool_]:
        """Return (n_labels,) which labels documents carry now, and none did before."""
        counts = self.training_counts_.label_counts
        are_new: NDArray[np.bool_] = (counts > 0) & (before.padded(len(counts)) == 0)
        return are_new

    def _read_more(self, data: Documents, labels: Any, progress: Progress | bool) -> Dataset:
        """Return the documents of an update, after checking that the model can take them in."""
        self.check_updatable()
        self._check_fitted()
        dataset = self.read_labels(as_dataset(data, labels, like=self.columns_), progress)
        self.check_documents(dataset)
        if dataset.Y.nnz == 0:
            raise DataError(
                f"of {spell_count(dataset.n_documents, 'document')}, none carries a label; "
                "there is nothing to add"
            )
        check_names(dataset, self.label_names_)
        return dataset

    def take_in(
        self,
        dataset: Dataset,
        train: bool,
        progress: Progress,
        *,
        only_carried_labels: bool = False,
    ) -> None:
        """Update with documents whose labels have the model's names, and restrain no label.

        New labels that no document of use carries are left out if `only_carried_labels` says so.
        Otherwise they get numbers like the others, so that members of a fusion count alike.
        """
        X = self._rows_of(dataset)
        useful = np.flatnonzero((np.diff(dataset.Y.indptr) > 0) & (np.diff(X.indptr) > 0))
        if not len(useful):
            raise DataError(
                f"of {spell_count(dataset.n_documents, 'document')}, none has both a label and a "
                "feature that the model knows; there is nothing to add"
            )
        taken = dataset.take(useful)
        if only_carried_labels:
            aligned = only_carried(taken, self.label_names_).align(self.label_names_)
        else:
            aligned = taken.align(self.label_names_)
        self.added_ = useful
        say_left_out(dataset, taken, self.label_names_, progress)
        if train and not self.trains_on:
            progress.say(f"{self.name} has nothing to train further: it is updated without")
        self.update_documents(aligned, X[useful], train and self.trains_on, progress)
        self.set_label_names(aligned.label_names)
        old, new = self.training_counts_, TrainingCounts.of(aligned)
        self.training_counts_ = TrainingCounts(
            old.n_documents + dataset.n_documents,
            old.padded(len(new.label_counts)) + new.label_counts,
        )
        self.finish_update()
        self.note_event(f"{spell_count(len(useful), 'document')} added")

    @property
    def is_updatable(self) -> bool:
        """Whether this model can take in more documents."""
        with suppress(ParameterError):
            self.check_updatable()
            return True
        return False

    def check_updatable(self) -> None:
        """Raise ParameterError if this model cannot take in more documents."""
        if not self.can_update:
            able = names_of_models(lambda model: model.can_update)
            raise ParameterError(f"{self.name} cannot be updated; models that can: {able}")

    # -- predicting -----------------------------------------------------------------------------

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
        if k is not None:
            check_k(k)
        if text is not None:
            data = as_documents(data, text=text, like=self.columns_)
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
        documents = in_memory(self.check_documents(data))
        exclude = find_excluded(data, self.label_names_)

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
        labels, shares = self._usual_labels(own.k)
        same = (own.labels == labels) & (own.scores == shares)
        usual: NDArray[np.bool_] = same.all(axis=1, keepdims=True)
        return usual

    def _usual_labels(self, k: int) -> tuple[Ids, Floats]:
        """Return what documents without any known feature get."""
        if self.restraint_ is None:
            return self.frequent_labels(k)

        def rank(depth: int) -> TopK:
            labels, shares = self.frequent_labels(depth)
            return TopK(labels[None], shares[None])

        top = self.restraint_.rank(rank, k)
        return top.labels[0], top.scores[0]

    def _predict_allowed(self, data: Documents, k: int, progress: Progress) -> TopK:
        """Return the model's own scores for the best labels that are not excluded."""
        documents = self.check_documents(data)
        k = min(k, len(self.label_names_))
        exclude = find_excluded(data, self.label_names_)
        more = 0 if exclude is None else int(np.diff(exclude.indptr).max())
        enough = min(k + more, len(self.label_names_))
        top = self._predict_in_batches(documents, enough, progress)
        check_finite(top.scores)
        return top if exclude is None else top.without(exclude, k)

    def _predict_in_batches(
        self, documents: list[str] | Texts | sp.csr_matrix, k: int, progress: Progress
    ) -> TopK:
        """Predict in one go, or in batches if somebody wants to see progress, or they are many."""
        n = documents.shape[0] if sp.issparse(documents) else len(documents)
        lies_in_file = isinstance(documents, Texts) or is_mapped(documents)
        if n <= BATCH or (progress is SILENT and not lies_in_file):
            return self._rank(in_memory(documents), k)
        tops = []
        progress.stage("labelling", n)
        for start in range(0, n, BATCH):
            tops.append(self._rank(documents[start : start + BATCH], k))
            progress.advance(len(tops[-1]))
        return TopK.concatenate(tops)

    def _rank(self, documents: list[str] | sp.csr_matrix, k: int) -> TopK:
        """Return the best labels by the model's own scores, some new ones held back."""
        if self.restraint_ is None:
            return self.predict_documents(documents, k)
        return self.restraint_.rank(lambda depth: self.predict_documents(documents, depth), k)

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
        documents = in_memory(self.check_documents(data))
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
        scores = scores if self.restraint_ is None else self.restraint_.weigh(labels, scores)
        check_finite(scores)
        if calibration is None:
            return scores
        k = min(calibration.n_placed, len(self.label_names_))
        own = self._rank(documents, k)
        placed = self._keep_shares(own, calibration.apply(own))
        found = calibration.apply_behind(scores, placed.scores[:, -1:])
        found = np.where(self._are_usual(own), scores, found)
        return np.where(labels >= 0, look_up_scores(placed, labels, found), np.float32(0))

    # -- explaining -----------------------------------------------------------------------------

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
        check_one(X.shape[0])
        weights = self.explain_row(X, None if label is None else self._find_label(label))
        parts = self.explain_parts(X)
        return explain_terms(text, label, self.features_, X.indices, weights, parts)

    def _find_label(self, name: str) -> int:
        if not isinstance(name, str):
            raise ParameterError(f"label must be the name of a label. Got {name!r} instead.")
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

    # -- what it can read -----------------------------------------------------------------------

    def _check_reads(self, document_type: DocumentType) -> None:
        """Raise DataError if this model cannot be trained on documents of this type."""
        if document_type not in self.reads:
            got = "texts" if document_type == "texts" else "feature rows"
            able = names_of_models(lambda model: document_type in model.reads)
            raise DataError(f"{self.name} cannot be trained on {got}; models that can: {able}")

    def check_documents(self, data: Documents) -> list[str] | Texts | sp.csr_matrix:
        """Return the documents as texts or rows, after checking that this model can read them."""
        documents = as_documents(data, like=self.columns_)
        if isinstance(documents, list | Texts):
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
        return self._as_rows(in_memory(self.check_documents(data)))
