"""Fusion: several models, stacked by what each got right on documents it was not trained on.

No single model wins on every data set; together they do, since they err in different places. A plan
(`plan.py`) chooses the members by the data, the machine and the time there is. Each member is
trained with some documents held out (`training.py`). From the members' lists for these documents a
stacker learns to combine them (`stacking.py`). Afterwards the members are trained on all documents,
where the plan has time for that.

    members_      the trained members by name; texts become rows once, for all that read rows
    stacker_      gives each label in any member's list its probability
    shares_       (n_labels,) the labels' shares of the training documents
    held_out_     predictions for the held-out documents, by stackers that had not seen them
"""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset
from longtail.errors import DataError, ParameterError, TrainingError
from longtail.evaluation.explanation import Explanation, Neighbour, Term, Vote, explain_terms
from longtail.models.base import WORTH_SAYING, HeldOut, Model
from longtail.models.cost import format_seconds
from longtail.models.fusion.explain import (
    count_votes,
    leave_out_cells,
    leave_out_words,
    log_odds_of,
    weigh_terms,
)
from longtail.models.fusion.plan import (
    Member,
    Plan,
    parse_budget,
    parse_members,
    plan_fusion,
)
from longtail.models.fusion.sharing import describe_shared, share, unshare
from longtail.models.fusion.stacking import (
    Candidates,
    Stacker,
    StackerName,
    count_inputs,
    gather,
    label_shares,
    learn_stacking,
)
from longtail.models.fusion.training import MemberTrainer
from longtail.models.neural import Device
from longtail.models.registry import build_model
from longtail.progress import Progress
from longtail.runtime import memory
from longtail.runtime.memory import WORKSPACE, Stage, size_of, total_ram
from longtail.runtime.parallel import in_threads
from longtail.runtime.schema import ListOf, Schema, Value, look_up
from longtail.runtime.settings import configurable, learned, setting
from longtail.runtime.store import Files
from longtail.text.tfidf import Tfidf
from longtail.topk import NO_LABEL, TopK

MOST_MEMBERS = 1000
STACKED = 44  # bytes for each number that describes a candidate, while stacking is learned
WIDTH = 50  # labels that each member proposes


@configurable
class Fusion(Model):
    """Several models, stacked by what each got right on held-out documents."""

    name: ClassVar[str] = "fusion"
    summary: ClassVar[str] = "several models, stacked by what they got right on held-out documents"
    choose_when: ClassVar[str] = (
        "you want the best labels; it fits itself to data, machine and time"
    )
    can_explain: ClassVar[bool] = True
    can_resume: ClassVar[bool] = True
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
    device: Device = setting("auto", "where to train the members that torch trains")

    members_: Mapping[str, Model] = learned()
    stacker_: Stacker = learned()
    shares_: NDArray[np.float32] = learned()

    def check_parameters(self) -> None:
        """Raise ParameterError for the first parameter that is out of range."""
        super().check_parameters()
        if self.members is not None:
            parse_members(self.members)
        if self.budget is not None:
            parse_budget(self.budget)

    # -- learning -----------------------------------------------------------------------------

    def fit_documents(self, dataset: Dataset, progress: Progress) -> None:
        """Plan, train the members, learn to stack them, train them on all documents."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ParameterError("fusion is trained by one process; start it without torchrun")
        began = time.monotonic()
        features, X = self.learn_features(dataset, progress)
        plan, facts = plan_fusion(
            X,
            dataset.Y.shape[1],
            has_texts=dataset.X is None,
            members=self.members,
            budget=self.budget,
            device=self.device,
        )
        for line in plan.lines(facts):
            progress.say(line)
        self._say_memory(plan, X, dataset.Y, facts.device, features, progress)
        trainer = MemberTrainer(
            dataset,
            X,
            plan,
            facts,
            device=self.device,
            seed=self.seed,
            began=began,
            run_dir=self.run_dir,
            resume=self.resume,
            checkpoint_seconds=self.checkpoint_seconds,
            progress=progress,
        )
        self._finish(trainer, *self._stack(trainer, dataset))
        self.features_, self.n_features_ = features, int(X.shape[1])
        self.shares_ = label_shares(dataset.Y)
        took = ", ".join(f"{name} {format_seconds(s)}" for name, s in trainer.taken.items())
        progress.say(f"Trained in {format_seconds(time.monotonic() - began)}: {took}")

    def _say_memory(
        self,
        plan: Plan,
        X: sp.csr_matrix,
        Y: sp.csr_matrix,
        device: str,
        features: Tfidf | None,
        progress: Progress,
    ) -> None:
        """Say what the members take, one after the other; one that does not fit is left out."""
        texts = {} if features is None else {"rows of texts": size_of(X) + features.n_bytes}
        fold = 2 * int(size_of(X, Y) * plan.scheme.largest_share)
        members = [member.make() for member in plan.members]
        kept = [model.kept_of(X, Y) for model in members]
        # Members trained on a part stay until those trained on all are there.
        held = sum(kept) if plan.scheme.folds and plan.scheme.refit else 0
        needs = [model.needs_of(X, Y, device) for model in members]
        stages = []
        for number, own in enumerate(needs):
            others = {
                "other members": held + sum(kept[:number]),
                "rows of a fold": fold,
                "workspace": WORKSPACE,
                **texts,
            }
            stages += [stage.also(others) for stage in own]
        width = min(WIDTH * len(plan.members), Y.shape[1])
        n_numbers = plan.scheme.count_held(X.shape[0]) * width * count_inputs(len(plan.members))
        stages.append(Stage({"stacking": STACKED * n_numbers, "members": sum(kept), **texts}))
        plan_text = memory.plan_memory(stages, device=device, refuse=False)
        if total_ram(stages) >= WORTH_SAYING:
            progress.say(f"Memory: {plan_text}")

    def _stack(
        self, trainer: MemberTrainer, dataset: Dataset
    ) -> tuple[list[Member], dict[str, Model], Stacker]:
        """Train each member with documents held out, and learn from its lists for these."""
        width = min(WIDTH, dataset.Y.shape[1])
        trained: dict[str, Model] = {}
        lists: dict[str, list[TopK]] = {}
        planned = list(trainer.plan.members)
        self.held_out_ = None
        if not trainer.splits:
            return planned, {}, Stacker.plain_mean(len(planned))
        for member in planned:
            found = trainer.hold_out(member, width)
            if found is not None:
                trained[member.name], lists[member.name] = found
        members = [member for member in planned if member.name in trained]
        if not members:  # such as with one labelled document, which a fold must do without
            trainer.progress.say("Nothing could be held out: all members get the same weight")
            return planned, {}, Stacker.plain_mean(len(planned))
        return members, trained, self._learn_stacking(trainer, dataset, lists)

    def _learn_stacking(
        self, trainer: MemberTrainer, dataset: Dataset, lists: Mapping[str, list[TopK]]
    ) -> Stacker:
        """Learn the stacker from the held-out documents of all folds."""
        trainer.progress.stage("stacking", 1)
        choice = learn_stacking(lists, trainer.splits, dataset, self.stacker)
        trainer.progress.advance(1)
        if choice is None:
            trainer.progress.say(
                "The held-out documents carry no label: all members get the same weight"
            )
            return Stacker.plain_mean(len(lists))
        self.held_out_ = HeldOut(choice.rows, choice.unseen)
        for line in choice.lines():
            trainer.progress.say(line)
        return choice.stacker

    def _finish(
        self,
        trainer: MemberTrainer,
        members: Sequence[Member],
        trained: Mapping[str, Model],
        stacker: Stacker,
    ) -> None:
        """Train the members on all documents if the plan says so, and keep them."""
        done = dict(trained)
        if trainer.plan.scheme.refit or not trained:
            for member in members:
                model = trainer.refit(member, trained.get(member.name))
                if model is not None:
                    done[member.name] = model
        if not done:
            raise TrainingError("no member of the fusion could be trained; the lines above say why")
        if len(done) < len(members):  # nothing was held out, so nothing was learned of these
            stacker = Stacker.plain_mean(len(done))
        self.members_, self.stacker_ = done, stacker

    # -- predicting ---------------------------------------------------------------------------

    def predict_documents(self, documents: list[str] | sp.csr_matrix, k: int) -> TopK:
        """Let every member propose labels, then rank these by the stacker."""
        X = self._as_rows(documents)
        if X.shape[0] == 0:
            return TopK(np.empty((0, k), np.int32), np.empty((0, k), np.float32))
        return self.fill_empty(self.stacker_.rank(self._gather(documents, X, k), k), X)

    def score_documents(
        self, documents: list[str] | sp.csr_matrix, candidates: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Let the stacker score the candidates, whether a member proposes them or not."""
        X = self._as_rows(documents)
        if candidates.size == 0:
            return np.zeros(candidates.shape, np.float32)
        lists = self._ask(documents, X, 1)
        described = gather(list(lists.values()), self.shares_, candidates)
        return self.fill_empty_scores(self.stacker_.score(described, candidates), candidates, X)

    def _gather(self, documents: list[str] | sp.csr_matrix, X: sp.csr_matrix, k: int) -> Candidates:
        """Return all that the members propose."""
        lists = self._ask(documents, X, k)
        return gather(list(lists.values()), self.shares_)

    def _ask(
        self, documents: list[str] | sp.csr_matrix, X: sp.csr_matrix, k: int
    ) -> dict[str, TopK]:
        """Return the list of each member; for one document, members run side by side."""
        width = min(max(WIDTH, k), len(self.label_names_))

        def ask(member: Model) -> TopK:
            return member.predict_documents(X if member.trained_on == "rows" else documents, width)

        if X.shape[0] > 1:  # then each member has work for all threads
            return {name: ask(member) for name, member in self.members_.items()}
        # The slowest first, so that no thread is left alone with it at the end.
        names = sorted(self.members_, key=lambda name: -self.members_[name].milliseconds)
        found = dict(zip(names, in_threads(ask, [(self.members_[n],) for n in names]), strict=True))
        return {name: found[name] for name in self.members_}

    def explain(
        self, document: str | sp.spmatrix | sp.sparray, label: str | None = None
    ) -> Explanation:
        """Say which member voted for what, and which words weigh how much.

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
        votes = count_votes(self.stacker_, lists, self.shares_, asked, names)
        return Explanation(
            text,
            label,
            self._weigh_terms(text, documents, X, asked),
            members=_share_out(votes),
            neighbours=self._find_similar(X, label),
            votes=votes,
            member_terms=self._explain_members(text, label, X),
        )

    def _explain_members(
        self, text: str | None, label: str | None, X: sp.csr_matrix
    ) -> dict[str, Sequence[Term]]:
        """Return the words that each member looks at by itself, for members that can explain."""
        wanted = None if label is None else self._find_label(label)
        found: dict[str, Sequence[Term]] = {}
        for name, member in self.members_.items():
            if not member.can_explain:
                continue
            if member.trained_on == "texts" and text is not None:
                found[name] = member.explain(text, label).terms
            elif X.nnz:
                weights = member.explain_row(X, wanted)
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
        before = log_odds_of(self.stacker_, self._gather(documents, X, 1), asked)[0]
        rows = self._as_rows(variants.documents)
        after = log_odds_of(self.stacker_, self._gather(variants.documents, rows, 1), asked)
        return weigh_terms(variants, before, after)

    def _find_similar(self, X: sp.csr_matrix, label: str | None) -> Sequence[Neighbour]:
        """Return similar training documents, of the first member that knows any."""
        wanted = None if label is None else self._find_label(label)
        found = (member.find_similar(X, wanted) for member in self.members_.values() if X.nnz)
        return next(filter(None, found), ())

    # -- saving -------------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add the members, each with all of its files, and the stacker."""
        files.config["members"] = list(self.members_)
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
        schemas = [listed, Stacker.describe(len(names)), describe_shared(), Schema(members=names)]
        return Schema.join(schemas)

    def restore(self, files: Files) -> None:
        """Take back what was saved; raise ValueError for members that do not fit together."""
        names, files = files.config["members"], unshare(files)
        self.members_ = {name: self._restore_member(files, name) for name in names}
        self.stacker_ = Stacker.from_files(files)
        counts = self.training_counts_
        self.shares_ = (counts.label_counts / counts.n_documents).astype(np.float32)

    def _restore_member(self, files: Files, name: str) -> Model:
        """Return a member; raise ValueError unless it reads and labels as this model does."""
        inner = files.inner(name)
        if look_up(inner.config, "model") == self.name:
            raise ValueError("a fusion cannot be a member of a fusion")
        member = build_model(inner, f"member {name}")
        if list(member.label_names_) != list(self.label_names_):
            raise ValueError(f"the member {name} was trained on other labels")
        reads_texts = member.trained_on == "texts"
        if reads_texts and (self.trained_on == "rows" or member.makes_rows):
            raise ValueError(f"the member {name} reads texts, which this fusion does not have")
        if not reads_texts and member.n_features_ != self.n_features_:
            raise ValueError(f"the member {name} was trained on other features")
        return member


def _share_out(votes: Sequence[Vote]) -> dict[str, float]:
    """Return which share of all weights comes from each member."""
    given: dict[str, float] = {}
    for vote in votes:
        given[vote.member] = given.get(vote.member, 0.0) + vote.weight
    total = sum(map(abs, given.values())) or 1.0
    return {member: weight / total for member, weight in given.items()}
