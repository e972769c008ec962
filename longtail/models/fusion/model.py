"""Fusion: several models, stacked by what each got right on documents it was not trained on.

No single model wins on every data set; together they do, since they err in different places. How
they are chosen and trained is in `learning.py`, how they are asked in `candidates.py`, how their
scores become probabilities in `stacking.py`.

    members_      the trained members by name; texts become rows once, for all that read rows
    proposers_    how many labels those members propose that do
    stacker_      gives each label that is proposed its probability
    shares_       (n_labels,) the labels' shares of the training documents
    report_       what each member gains, weighs and takes
    dropped_      the same of members that were trained and left out, as they do not pay
    held_out_     predictions for the held-out documents, by stackers that had not seen them
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset, as_dataset
from longtail.errors import DataError, ModelFileError, ParameterError
from longtail.evaluation.explanation import Explanation, Neighbour
from longtail.models.base import Model
from longtail.models.checks import check_one
from longtail.models.contract import Documents
from longtail.models.fusion.candidates import (
    MOST_PROPOSED,
    USUAL_PROPOSED,
    Said,
    ask,
    describe_candidates,
    list_voices,
)
from longtail.models.fusion.eligible import parse_members
from longtail.models.fusion.explain import explain_document
from longtail.models.fusion.learning import Learning
from longtail.models.fusion.limits import Limits
from longtail.models.fusion.plan import parse_budget
from longtail.models.fusion.sharing import describe_shared, share, unshare
from longtail.models.fusion.stacking import Stacker, StackerName, label_shares
from longtail.models.fusion.weight import MemberReport, describe_members
from longtail.models.neural import Device
from longtail.models.registry import build_model
from longtail.progress import SILENT, Progress
from longtail.runtime.mapped import in_memory
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.runtime.schema import Config, ListOf, Schema, Value, look_up
from longtail.runtime.settings import between, configurable, learned, setting
from longtail.runtime.store import Files
from longtail.topk import NO_LABEL, TopK

MOST_MEMBERS = 1000
BATCH = 4096  # documents that members are asked about together


@configurable
class Fusion(Model):
    """Several models, stacked by what each got right on held-out documents."""

    name: ClassVar[str] = "fusion"
    summary: ClassVar[str] = "several models, stacked by what they got right on held-out documents"
    choose_when: ClassVar[str] = (
        "you want the best labels; it fits itself to data, machine and time"
    )
    can_update: ClassVar[bool] = True
    can_explain: ClassVar[bool] = True
    uses_cluster: ClassVar[bool] = True
    can_resume: ClassVar[bool] = True
    plans: ClassVar[bool] = True
    holds_out: ClassVar[bool] = True

    members: str | None = setting(
        None, "models to combine, such as linear,glas; none chooses by data, machine and budget"
    )
    budget: str | None = setting(
        None,
        "how long training may take, such as 90s, 10m or 2h; none is 10m, or no limit if members "
        "are given",
    )
    stacker: StackerName | None = setting(
        None, "how to combine the members; none chooses on held-out documents"
    )
    max_size: str | None = setting(
        None, "how large the model folder may be, such as 300MB; none is any size"
    )
    max_latency: str | None = setting(
        None, "how long one document may take, such as 5ms; none is any time"
    )
    device: Device = setting("auto", "where to train the members that torch trains")

    members_: Mapping[str, Model] = learned()
    proposers_: Mapping[str, int] = learned()  # how many labels those propose that do
    stacker_: Stacker = learned()
    shares_: NDArray[np.float32] = learned()
    report_: Mapping[str, MemberReport] = learned()
    dropped_: Mapping[str, MemberReport] = learned()  # of members that did not pay

    def check_parameters(self) -> None:
        """Raise ParameterError for the first parameter that is out of range."""
        super().check_parameters()
        if self.members is not None:
            parse_members(self.members)
        if self.budget is not None:
            parse_budget(self.budget)
        Limits.parse(self.max_size, self.max_latency)

    # -- learning -----------------------------------------------------------------------------

    def fit_documents(self, dataset: Dataset, progress: Progress) -> None:
        """Plan, train the members, learn to stack them, train them on all documents."""
        learning = Learning(self, dataset, progress)
        learned = learning.run()
        self.features_, self.n_features_ = learning.features, int(learning.X.shape[1])
        self.shares_ = label_shares(dataset.Y)
        self.members_, self.proposers_ = learned.members, learned.proposers
        self.stacker_ = learned.stacker
        self.report_, self.dropped_ = learned.report, learned.dropped
        self.held_out_ = learned.held_out

    def plan_lines(self, data: Documents, labels: Any = None) -> list[str]:
        """Return the plan for these documents, as `fit` shows it before it trains."""
        self.check_parameters()
        return Learning(self, as_dataset(data, labels), SILENT).lines()

    def describe_training(self) -> list[str]:
        """Return what each member gains, weighs and takes, for the card."""
        return describe_members(self.report_, self.dropped_)

    # -- predicting ---------------------------------------------------------------------------

    def predict_documents(self, documents: list[str] | sp.csr_matrix, k: int) -> TopK:
        """Let some members propose labels and all score them, then rank these by the stacker."""
        X = self._as_rows(documents)
        if X.shape[0] == 0:
            return TopK(np.empty((0, k), np.int32), np.empty((0, k), np.float32))
        tops = [
            self._rank_said(ask(self.members_, self.proposers_, *some, self._n_labels, k=k), k)
            for some in self._batches(documents, X)
        ]
        return self.fill_empty(TopK.concatenate(tops), X)

    def score_documents(
        self, documents: list[str] | sp.csr_matrix, candidates: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Let the stacker score the candidates, whether a member proposes them or not."""
        X = self._as_rows(documents)
        if candidates.size == 0:
            return np.zeros(candidates.shape, np.float32)
        scores, first = [], 0
        for some in self._batches(documents, X):
            asked = candidates[first : first + some[1].shape[0]]
            said = ask(self.members_, self.proposers_, *some, self._n_labels, also=asked)
            scores.append(self.stacker_.score(describe_candidates(said, self.shares_), asked))
            first += len(asked)
        return self.fill_empty_scores(np.concatenate(scores), candidates, X)

    def _batches(
        self, documents: list[str] | sp.csr_matrix, X: sp.csr_matrix
    ) -> Iterator[tuple[list[str] | sp.csr_matrix, sp.csr_matrix]]:
        """Yield documents that members are asked about together, and their rows."""
        if X.shape[0] <= BATCH:
            yield documents, X
            return
        for first in range(0, X.shape[0], BATCH):
            yield documents[first : first + BATCH], X[first : first + BATCH]

    def _rank_said(self, said: Said, k: int) -> TopK:
        """Return the `k` most probable labels of each document."""

        def rank(first: int, last: int) -> TopK:
            return self.stacker_.rank(describe_candidates(said.part(first, last), self.shares_), k)

        return TopK.concatenate(
            in_threads(rank, list(pairwise(cut(len(said.labels), n_threads()))))
        )

    @property
    def _n_labels(self) -> int:
        return len(self.shares_)

    def explain(
        self, document: str | sp.spmatrix | sp.sparray, label: str | None = None
    ) -> Explanation:
        """Say which member voted for what, and which words weigh how much.

        Args:
            document: a text, or one feature row for a model of rows.
            label: the name of a label; None takes the five best of the document.
        """
        self._check_fitted()
        given = [document] if isinstance(document, str) else document
        documents = in_memory(self.check_documents(given))
        X = self._as_rows(documents)
        check_one(X.shape[0])
        text = documents[0] if isinstance(documents, list) else None
        asked = [int(each) for each in self.predict(documents).labels[0] if each != NO_LABEL]
        asked = asked if label is None else [self._find_label(label)]
        return explain_document(self, text, documents, X, label, asked)

    def find_examples(self, label: int, n: int) -> Sequence[Neighbour]:
        """Return training documents with a label, of the first member that keeps any."""
        found = (member.find_examples(label, n) for member in self._knowing(label))
        return next(filter(None, found), ())

    def find_near_labels(self, label: int, n: int) -> Sequence[tuple[int, float]]:
        """Return labels like this one, by the first member that can tell."""
        found = (member.find_near_labels(label, n) for member in self._knowing(label))
        return next(filter(None, found), ())

    def _knowing(self, label: int) -> Iterator[Model]:
        """Yield the members that were trained with the label."""
        return (each for each in self.members_.values() if label < len(each.label_names_))

    # -- updating -----------------------------------------------------------------------------

    def finish_update(self) -> None:
        """The stacker keeps its weights, and sees how frequent labels are now."""
        self._count_shares()

    def update_documents(
        self, dataset: Dataset, X: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Update the members that can be; of new labels, others say what these say."""
        able = [name for name, each in self.members_.items() if each.is_updatable]
        if not able:
            raise ParameterError(
                f"none of the members ({', '.join(self.members_)}) can be updated; train anew, "
                "with linear or knn among them"
            )
        members: dict[str, Model] = dict(self.members_)
        updated: list[str] = []
        rows = Dataset(dataset.Y, dataset.label_names, X=X)
        others = [name for name in members if name not in able]
        if others:
            progress.say(f"{', '.join(others)}: left as they are, as they cannot be updated")
        for name in able:
            member = copy(members[name])
            reads_rows = member.trained_on == "rows"
            more = rows if reads_rows else replace(dataset, label_uris=None)
            try:
                member.take_in(more, train and member.trains_on, progress)
            except DataError as error:  # it can do nothing with these; others can
                if name == able[-1] and not updated:
                    raise
                progress.say(f"{name}: left as it is: {error}")
                continue
            if dataset.texts is not None and reads_rows:
                member.add_snippets(dataset.texts)
            members[name] = member
            updated.append(name)
        if not any(name in self.proposers_ for name in updated):  # nobody proposes a new label
            self.proposers_ = {**self.proposers_, updated[0]: USUAL_PROPOSED}
        self.members_ = members

    @property
    def finds_names(self) -> bool:
        """Whether one of the members does."""
        return any(member.finds_names for member in self.members_.values())

    def add_names(self, names: Sequence[tuple[int, str]]) -> None:
        """Let the members that look for names look for these, and one of them propose labels."""
        able = [name for name, member in self.members_.items() if member.finds_names]
        members = dict(self.members_)
        for name in able:
            members[name] = copy(members[name])
            members[name].set_label_names(self.label_names_)
            members[name].add_names(names)
        self.members_ = members
        if not any(name in self.proposers_ for name in able):
            self.proposers_ = {**self.proposers_, able[0]: USUAL_PROPOSED}

    def say_unseen(self) -> str:
        """Say what the member that looks for names says."""
        return next(each.say_unseen() for each in self.members_.values() if each.finds_names)

    def set_label_names(self, names: Sequence[str]) -> None:
        """Give labels other names, here and in the members; they do not get those at the end."""
        super().set_label_names(names)
        self.members_ = {name: copy(member) for name, member in self.members_.items()}
        for member in self.members_.values():
            member.set_label_names(self.label_names_[: len(member.label_names_)])
        self._count_shares()

    def _count_shares(self) -> None:
        """Take the labels' shares of the training documents from their counts."""
        counts = self.training_counts_
        self.shares_ = (counts.label_counts / counts.n_documents).astype(np.float32)

    # -- saving -------------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add the members, each with all of its files, and the stacker."""
        files.config["members"] = list(self.members_)
        files.config["proposers"] = dict(self.proposers_)
        for key, report in (("report", self.report_), ("dropped", self.dropped_)):
            files.config[key] = {name: each._asdict() for name, each in report.items()}
        for name, member in self.members_.items():
            files.nest(name, member.to_files())
        share(files)
        self.stacker_.add_to_files(files)

    def describe(self, files: Files) -> Schema:
        """Return the schema of the list of members and of the stacker.

        The members' own files are checked when they are built.
        """
        listed = Schema(config={"members": ListOf(Value(str), 1, MOST_MEMBERS)})
        listed.check(files, {})
        names, inner = files.config["members"], look_up(files.config, "inner")
        if not isinstance(inner, dict) or sorted(inner) != sorted(names):
            raise ValueError("the members are not those whose files are there")
        proposers = look_up(files.config, "proposers")
        if not isinstance(proposers, dict) or not proposers or not set(names).issuperset(proposers):
            raise ValueError("those who propose labels are not among the members")
        dropped = look_up(files.config, "dropped")
        if not isinstance(dropped, dict) or len(dropped) > MOST_MEMBERS:
            raise ValueError("the members that were dropped are not listed by their names")
        facts: Config = {
            "report": dict.fromkeys(names, MemberReport.describe()),
            "dropped": dict.fromkeys(dropped, MemberReport.describe()),
            "proposers": dict.fromkeys(proposers, Value(int, between(1, MOST_PROPOSED))),
        }
        own = [listed, Schema(config=facts), Stacker.describe(len(list_voices(names)))]
        return Schema.join([*own, describe_shared(), Schema(members=names)])

    def check_files(self, files: Files) -> None:
        """Raise ValueError for files that loading would refuse, of members as well."""
        super().check_files(files)
        whole = unshare(files)
        for name, member in self.members_.items():
            try:
                member.check_files(whole.inner(name))
            except (ModelFileError, ValueError) as error:
                raise ValueError(f"member {name}: {error}") from error

    def restore(self, files: Files) -> None:
        """Take back what was saved; raise ValueError for members that do not fit together."""
        names, files = files.config["members"], unshare(files)
        self.members_ = {name: self._restore_member(files, name) for name in names}
        self.proposers_ = files.config["proposers"]
        self.report_ = {name: MemberReport(**files.config["report"][name]) for name in names}
        dropped = files.config["dropped"]
        self.dropped_ = {name: MemberReport(**each) for name, each in dropped.items()}
        self.stacker_ = Stacker.from_files(files)
        self._count_shares()

    def _restore_member(self, files: Files, name: str) -> Model:
        """Return a member; raise ValueError unless it reads and labels as this model does."""
        inner = files.inner(name)
        if look_up(inner.config, "model") == self.name:
            raise ValueError("a fusion cannot be a member of a fusion")
        member = build_model(inner, f"member {name}")
        n_known = len(member.label_names_)  # an update adds labels behind those of training
        if list(member.label_names_) != list(self.label_names_)[:n_known]:
            raise ValueError(f"the member {name} was trained on other labels")
        reads_texts = member.trained_on == "texts"
        if reads_texts and (self.trained_on == "rows" or member.makes_rows):
            raise ValueError(f"the member {name} reads texts, which this fusion does not have")
        if not reads_texts and member.n_features_ != self.n_features_:
            raise ValueError(f"the member {name} was trained on other features")
        return member
