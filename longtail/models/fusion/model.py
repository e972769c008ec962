"""Fusion: several models, combined by what each got right on documents it was not trained on.

No single model wins on every data set; together they do, since they err in different places. A
plan (`fusion_parts`) chooses the parts by the data, the machine and the time there is; each part
is trained with some documents held out (`fusion_training`); from its lists for these, a small
combiner learns whom to believe (`fusion_combiner`), and how probable labels are
(`longtail.evaluation.calibration`). Afterwards the parts are trained on all documents where that pays.

    parts_        the trained parts by name; texts become rows once, for all of them that read rows
    combiner_     gives each label in any part's list its probability
    shares_       (n_labels,) the labels' shares of the training documents
    held_out_     what is said of held-out documents, by combiners that had not seen them
"""

import os
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset, as_dataset
from longtail.errors import DataError, ParameterError, TrainingError
from longtail.evaluation.calibration import Calibration, choose_depth
from longtail.evaluation.explanation import Explanation, Neighbour, Term, Vote, explain_terms
from longtail.evaluation.metrics import TrainingCounts, evaluate
from longtail.models.base import Documents, Model
from longtail.models.fusion.explain import (
    count_votes,
    leave_out_cells,
    leave_out_words,
    margins_of,
    weigh_terms,
)
from longtail.models.fusion.plan import (
    DEFAULT_BUDGET,
    NEED_TORCH,
    Facts,
    Part,
    Place,
    Plan,
    describe_data,
    find_parts,
    format_seconds,
    make_plan,
    measure_speed,
    parse_budget,
)
from longtail.models.fusion.stacking import (
    PER_PART,
    Candidates,
    Combiner,
    Kind,
    Logistic,
    choose_combiner,
    gather,
    join,
    possible_kinds,
)
from longtail.models.fusion.training import Training, nest_parts
from longtail.models.fusion.trees import Trees
from longtail.models.neural import Device
from longtail.progress import SILENT, Progress
from longtail.runtime.parallel import in_threads
from longtail.runtime.store import Files
from longtail.text.tfidf import Tfidf
from longtail.topk import NO_LABEL, TopK

# In the order in which they are worth their time.
USEFUL = ("linear", "knn", "glas", "attention-xml", "mnn", "dxml", "rank-ae")
# In the order of how long they think about one document.
SLOWEST = ("attention-xml", "dxml", "knn", "mnn", "rank-ae", "glas", "linear")
CPU: Place = "cpu"
WIDTH = 50  # labels that each part proposes


class HeldOut(NamedTuple):
    """What a fusion says of documents that neither its parts nor its combiner had seen.

    Attributes:
        rows: which of the training documents.
        top: their lists, as scored before calibration.
    """

    rows: NDArray[np.int64]
    top: TopK


class Fusion(Model):
    """Several models, combined by what each got right on held-out documents.

    Args:
        parts: models to combine, such as linear,glas; none chooses by data, machine and budget.
        budget: how long training may take, such as 90s, 10m or 2h; none is 10m, or as long as it
            takes if parts are given.
        combiner: how to combine; none chooses by held-out documents.
        device: where to train the parts that torch trains.
        seed: fixes everything that is random.
        tfidf: how texts become rows.
    """

    name: ClassVar[str] = "fusion"
    summary: ClassVar[str] = "several models, combined by what they got right on held-out documents"
    choose_when: ClassVar[str] = (
        "you want the best labels; it fits itself to data, machine and time"
    )

    can_resume: ClassVar[bool] = True

    run_dir: Path | None = None
    resume: bool = False

    parts_: Mapping[str, Model]
    combiner_: Combiner
    shares_: NDArray[np.float32]
    held_out_: HeldOut | None = None

    def __init__(
        self,
        *,
        parts: str | None = None,
        budget: str | None = None,
        combiner: Kind | None = None,
        device: Device = "auto",
        seed: int = 0,
        tfidf: Tfidf | None = None,
    ):
        self.parts = parts
        self.budget = budget
        self.combiner = combiner
        self.device = device
        self.seed = seed
        self.tfidf = tfidf

    def check_parameters(self) -> None:
        """Raise ParameterError for the first parameter that is out of range."""
        if self.parts is not None:
            find_parts(self.parts, known_parts())
        if self.budget is not None:
            parse_budget(self.budget)
        kinds = (None, "mean", "logistic", "boosted")
        self.require("combiner", self.combiner in kinds, "mean, logistic, boosted or none")
        self.require("device", self.device in ("auto", "cpu", "cuda"), "'auto', 'cpu' or 'cuda'")
        self.require("seed", 0 <= self.seed < 2**32, "between 0 and 4294967295")

    # -- learning -----------------------------------------------------------------------------

    def fit(self, data: Documents, labels: Any = None, *, progress: Progress = SILENT) -> Self:
        """Learn as every model does, and how probable labels are."""
        dataset = as_dataset(data, labels)
        super().fit(dataset, progress=progress)
        if self.held_out_ is not None:
            self._learn_probabilities(dataset.Y[self.held_out_.rows], self.held_out_.top, progress)
        return self

    def fit_documents(self, dataset: Dataset, progress: Progress) -> None:
        """Plan, train the parts, learn to combine them, train them on all documents."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ParameterError("fusion is trained by one process; start it without torchrun")
        began = time.monotonic()
        features, X = None, dataset.X
        if X is None:
            features = (self.tfidf or Tfidf()).copy()
            progress.stage("reading texts", 1)
            X = features.fit_transform(dataset.texts or [])
            progress.advance(1)
        plan, facts = self._make_plan(X, dataset, progress)
        training = Training(
            dataset,
            X,
            plan,
            facts,
            device=self.device,
            seed=self.seed,
            began=began,
            run_dir=self.run_dir,
            resume=self.resume,
            progress=progress,
        )
        learned = self._combine(training, dataset)
        self._finish(training, *learned)
        self.features_, self.n_features_ = features, int(X.shape[1])
        self.shares_ = _shares(TrainingCounts.of(dataset))
        took = ", ".join(f"{name} {format_seconds(s)}" for name, s in training.taken.items())
        progress.say(f"Trained in {format_seconds(time.monotonic() - began)}: {took}")

    def _make_plan(
        self, X: sp.csr_matrix, dataset: Dataset, progress: Progress
    ) -> tuple[Plan, Facts]:
        """Choose the parts and say so."""
        has_texts = dataset.X is None
        named = None if self.parts is None else find_parts(self.parts, known_parts())
        usable = [name for name in known_parts() if _reads(name, has_texts)]
        for name in named or ():
            if name not in usable:
                raise DataError(
                    f"the part {name} cannot be trained on feature rows; "
                    f"parts that can: {', '.join(usable)}"
                )
        if find_spec("torch") is None:
            usable = [name for name in usable if name not in NEED_TORCH]
            progress.say(
                "Note: without torch only a few parts can be trained; "
                "install it with: pip install 'longtail[deep]'"
            )
        budget = None
        if self.budget is not None or named is None:
            budget = parse_budget(self.budget or DEFAULT_BUDGET)
        needs_torch = not set(named or usable).isdisjoint(NEED_TORCH)
        kind = _find_device(self.device) if needs_torch else CPU
        facts = describe_data(X, dataset.n_labels, has_texts, kind, measure_speed())
        plan = make_plan(facts, usable, named, budget)
        for line in plan.lines(facts):
            progress.say(line)
        return plan, facts

    def _combine(
        self, training: Training, dataset: Dataset
    ) -> tuple[list[Part], dict[str, Model], Combiner]:
        """Train each part with documents held out, and learn from its lists for these."""
        width = min(WIDTH, dataset.n_labels)
        trained: dict[str, Model] = {}
        lists: dict[str, list[TopK]] = {}
        self.held_out_ = None
        if not training.splits:
            return list(training.plan.parts), {}, _plain_mean(len(training.plan.parts))
        for part in training.plan.parts:
            found = training.hold_out(part, width)
            if found is not None:
                trained[part.name], lists[part.name] = found
        parts = [part for part in training.plan.parts if part.name in trained]
        if not parts:  # such as with one labelled document, which a fold must do without
            training.progress.say("Nothing could be held out: all parts count alike")
            return list(training.plan.parts), {}, _plain_mean(len(training.plan.parts))
        return parts, trained, self._learn_to_combine(training, dataset, lists)

    def _learn_to_combine(
        self, training: Training, dataset: Dataset, lists: Mapping[str, list[TopK]]
    ) -> Combiner:
        """Choose the combiner by the held-out documents of all folds."""
        groups, held_out = [], []
        for fold, (kept, held) in enumerate(training.splits):
            counts = TrainingCounts(len(kept), _count_labels(dataset.Y[kept]))
            groups.append(gather([each[fold] for each in lists.values()], _shares(counts)))
            held_out.append(held)
        rows = np.concatenate(held_out)
        Y, candidates = dataset.Y[rows], join(groups)
        if not Y.nnz:
            training.progress.say("The held-out documents carry no label: all parts count alike")
            return _plain_mean(len(lists))
        training.progress.stage("combining", 1)
        all_counts = TrainingCounts.of(dataset)
        kinds = [self.combiner] if self.combiner else possible_kinds(Y.shape[0])
        alone = {
            name: evaluate(_concatenate(each), Y, train=all_counts) for name, each in lists.items()
        }
        choice = choose_combiner(
            candidates, Y, all_counts, kinds, choose_depth(Y), list(alone.values())
        )
        training.progress.advance(1)
        self.held_out_ = HeldOut(rows, choice.unseen)
        training.progress.say(f"On {len(rows):,} held-out documents:")
        for name, own in alone.items():
            training.progress.say(f"  {name} alone: {_sum_up(own)}")
        for kind, report in choice.reports.items():
            mark = ", chosen" if kind == choice.combiner.kind else ""
            training.progress.say(f"  combined ({kind}): {_sum_up(report)}{mark}")
        if choice.combiner.lift.slope:
            training.progress.say(f"  with rare labels lifted: {_sum_up(choice.report)}")
        return choice.combiner

    def _finish(
        self,
        training: Training,
        parts: Sequence[Part],
        trained: Mapping[str, Model],
        combiner: Combiner,
    ) -> None:
        """Train the parts on all documents if the plan says so, and keep them."""
        done = dict(trained)
        if training.plan.scheme.refit or not trained:
            for part in parts:
                model = training.refit(part, trained.get(part.name))
                if model is not None:
                    done[part.name] = model
        if not done:
            raise TrainingError("no part of the fusion could be trained; the lines above say why")
        if len(done) < len(parts):  # nothing was held out, so nothing was learned of these
            combiner = _plain_mean(len(done))
        self.parts_, self.combiner_ = done, combiner

    def _learn_probabilities(self, Y: sp.csr_matrix, top: TopK, progress: Progress) -> None:
        """Fit the calibration on held-out documents."""
        try:
            self.calibration_ = Calibration.fit(top, Y, counts=self.training_counts_)
        except DataError as error:
            progress.say(f"Note: no probabilities: {error}")

    # -- predicting ---------------------------------------------------------------------------

    def predict_documents(self, documents: list[str] | sp.csr_matrix, k: int) -> TopK:
        """Ask every part, then combine what they say."""
        X = self._as_rows(documents)
        if X.shape[0] == 0:
            return TopK(np.empty((0, k), np.int32), np.empty((0, k), np.float32))
        top = self.combiner_.rank(self._gather(documents, X, k), k)
        empty = np.flatnonzero(np.diff(X.indptr) == 0)
        if len(empty):
            top.labels[empty], top.scores[empty] = self.frequent_labels(k)
        return top

    def _gather(self, documents: list[str] | sp.csr_matrix, X: sp.csr_matrix, k: int) -> Candidates:
        """Return all that the parts propose."""
        lists = self._ask(documents, X, k)
        return gather(list(lists.values()), self.shares_)

    def _ask(
        self, documents: list[str] | sp.csr_matrix, X: sp.csr_matrix, k: int
    ) -> dict[str, TopK]:
        """Return the list of each part; for one document, parts think side by side."""
        width = min(max(WIDTH, k), len(self.label_names_))

        def ask(part: Model) -> TopK:
            return part.predict_documents(X if part.trained_on == "rows" else documents, width)

        if X.shape[0] > 1:  # then each part has work for all threads
            return {name: ask(part) for name, part in self.parts_.items()}
        names = sorted(self.parts_, key=_slowest_first)
        found = dict(zip(names, in_threads(ask, [(self.parts_[n],) for n in names]), strict=True))
        return {name: found[name] for name in self.parts_}

    def explain(
        self, document: str | sp.spmatrix | sp.sparray, label: str | None = None
    ) -> Explanation:
        """Say which part voted for what, and which words weigh how much.

        Args:
            document: a text, or one feature row for a model of rows.
            label: the name of a label; None takes the five best of the document.
        """
        self._check_fitted()
        text = document if isinstance(document, str) else None
        documents = self.check_documents(document if text is None else [text])
        X = self._as_rows(documents)
        if X.shape[0] != 1:
            raise DataError(f"one document can be explained at a time; got {X.shape[0]}")
        asked = [int(each) for each in self.predict(documents).labels[0] if each != NO_LABEL]
        asked = asked if label is None else [self._find_label(label)]
        lists, names = self._ask(documents, X, 1), self.label_names_.__getitem__
        votes = count_votes(self.combiner_, lists, self.shares_, asked, names)
        return Explanation(
            text,
            label,
            self._weigh_terms(text, documents, X, asked),
            members=_share_out(votes),
            neighbours=self._near(X, label),
            votes=votes,
            member_terms=self._explain_parts(text, label, X),
        )

    def _explain_parts(
        self, text: str | None, label: str | None, X: sp.csr_matrix
    ) -> dict[str, Sequence[Term]]:
        """Return the words that each part looks at by itself, for parts that can tell."""
        wanted = None if label is None else self._find_label(label)
        found: dict[str, Sequence[Term]] = {}
        for name, part in self.parts_.items():
            if part.trained_on == "texts" and text is not None:
                found[name] = part.explain(text, label).terms
            elif type(part).explain_row is not Model.explain_row and X.nnz:
                weights = part.explain_row(X, wanted)
                own = explain_terms(text, label, self.features_, X.indices, weights)
                found[name] = own.terms
        return found

    def _weigh_terms(
        self, text: str | None, documents: Any, X: sp.csr_matrix, asked: Sequence[int]
    ) -> list[Term]:
        """Return what the labels lose without each word."""
        if text is not None and self.features_ is not None:
            variants = leave_out_words(text, self.features_)
        else:
            variants = leave_out_cells(X)
        if not variants.names:
            return []
        before = margins_of(self.combiner_, self._gather(documents, X, 1), asked)[0]
        rows = self._as_rows(variants.documents)
        after = margins_of(self.combiner_, self._gather(variants.documents, rows, 1), asked)
        return weigh_terms(variants, before, after)

    def _near(self, X: sp.csr_matrix, label: str | None) -> Sequence[Neighbour]:
        """Return the nearest training documents, if there is a part that knows them."""
        if "knn" not in self.parts_ or not X.nnz:
            return ()
        return self.parts_["knn"].explain(X, label).neighbours

    # -- saving -------------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add the parts, each with all of its files, and the combiner."""
        nest_parts(files, list(self.parts_.items()))
        self.combiner_.add_to_files(files)

    def restore(self, files: Files) -> None:
        """Take back what was saved; raise ValueError for parts that do not fit together."""
        from longtail.models import get_model_class

        names = files.config["parts"]
        self.parts_ = {
            name: get_model_class(name).from_files(files.inner(name), name) for name in names
        }
        for name, part in self.parts_.items():
            if list(part.label_names_) != list(self.label_names_):
                raise ValueError(f"the part {name} was trained on other labels")
            if part.trained_on == "rows" and part.n_features_ != self.n_features_:
                raise ValueError(f"the part {name} was trained on other features")
        self.combiner_ = Combiner.from_files(files, len(names))
        self.shares_ = _shares(self.training_counts_)


def _slowest_first(name: str) -> int:
    """Sort parts so that no thread is left alone with a slow one at the end."""
    return SLOWEST.index(name) if name in SLOWEST else 0


def _share_out(votes: Sequence[Vote]) -> dict[str, float]:
    """Return how much of all that parts give comes from each of them."""
    given: dict[str, float] = {}
    for vote in votes:
        given[vote.member] = given.get(vote.member, 0.0) + vote.weight
    total = sum(map(abs, given.values())) or 1.0
    return {part: weight / total for part, weight in given.items()}


def known_parts() -> list[str]:
    """Return the models that can be parts, the most useful first."""
    from longtail.models import model_names

    known = [name for name in model_names() if name != Fusion.name]
    return sorted(known, key=lambda name: USEFUL.index(name) if name in USEFUL else len(USEFUL))


def _reads(name: str, has_texts: bool) -> bool:
    from longtail.models import get_model_class

    return has_texts or "rows" in get_model_class(name).reads


def _find_device(device: Device) -> Place:
    """Return "cpu" or "cuda": where torch will train."""
    if find_spec("torch") is None:
        if device == "cuda":
            raise ParameterError("there is no torch, hence no GPU; leave out --device cuda")
        return "cpu"
    from longtail.training.processes import choose_device

    return "cuda" if choose_device(device).type == "cuda" else "cpu"


def _plain_mean(n_parts: int) -> Combiner:
    """Return the combiner that believes all parts alike."""
    weights = np.zeros(PER_PART * n_parts + 2, np.float32)
    for part in range(n_parts):
        weights[PER_PART * part : PER_PART * part + 2] = 1 / n_parts
    return Combiner("mean", Logistic(weights, 0.0), Trees.none())


def _shares(counts: TrainingCounts) -> NDArray[np.float32]:
    return (counts.label_counts / counts.n_documents).astype(np.float32)


def _count_labels(Y: sp.csr_matrix) -> Any:
    return np.bincount(Y.indices, minlength=Y.shape[1])


def _concatenate(tops: Sequence[TopK]) -> TopK:
    return TopK(
        np.concatenate([top.labels for top in tops]), np.concatenate([top.scores for top in tops])
    )


def _sum_up(report: Mapping[str, float]) -> str:
    """Return the metrics that matter most in a few words."""
    frequent = " / ".join(f"{report[f'P@{k}']:.1f}" for k in (1, 3, 5))
    rare = " / ".join(f"{report[f'PSP@{k}']:.1f}" for k in (1, 3, 5))
    return f"P@1/3/5 {frequent}, PSP@1/3/5 {rare}"
