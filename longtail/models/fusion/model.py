"""Fusion: several models, stacked by what each got right on documents it was not trained on.

No single model wins on every data set; together they do, since they err in different places. A plan
(`plan.py`) chooses the members by the data, the machine and the time there is. Each member is
trained with some documents held out (`training.py`). From the members' lists for these documents a
stacker learns to combine them (`stacking.py`). Afterwards the members are trained on all documents,
where the plan has time for that.

    members_      the trained members by name; texts become rows once, for all that read rows
    proposers_    how many labels those members propose that do
    stacker_      gives each label that is proposed its probability
    shares_       (n_labels,) the labels' shares of the training documents
    report_       what each member gains, weighs and takes
    held_out_     predictions for the held-out documents, by stackers that had not seen them
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset, as_dataset
from longtail.errors import DataError, ParameterError, TrainingError
from longtail.evaluation.explanation import Explanation, Neighbour, Term, Vote, explain_terms
from longtail.models.base import Model
from longtail.models.contract import Documents, HeldOut
from longtail.models.cost import Facts, format_seconds
from longtail.models.estimates import WORTH_SAYING
from longtail.models.fusion.candidates import (
    MOST_PROPOSED,
    USUAL_PROPOSED,
    Said,
    ask,
    count_inputs,
    describe_candidates,
)
from longtail.models.fusion.explain import (
    count_votes,
    leave_out_features,
    leave_out_words,
    log_odds_of,
    weigh_terms,
)
from longtail.models.fusion.growth import Judge, grow
from longtail.models.fusion.limits import (
    TIMED,
    Limits,
    MemberReport,
    Weight,
    add_up,
    choose_members,
    say_weight,
    time_documents,
)
from longtail.models.fusion.plan import (
    Member,
    Plan,
    find_budget,
    find_facts,
    make_plan,
    parse_budget,
    parse_members,
)
from longtail.models.fusion.probe import Prober
from longtail.models.fusion.sharing import describe_shared, share, unshare
from longtail.models.fusion.spread import ClusterTrainer
from longtail.models.fusion.stacking import (
    Stacker,
    StackerName,
    label_shares,
    learn_stacking,
)
from longtail.models.fusion.training import HeldOutMember, MemberTrainer
from longtail.models.neural import Device
from longtail.models.registry import build_model
from longtail.progress import SILENT, Progress
from longtail.runtime import memory
from longtail.runtime.mapped import in_memory
from longtail.runtime.memory import WORKSPACE, Stage, size_of, total_ram
from longtail.runtime.parallel import cut, in_threads, n_threads
from longtail.runtime.schema import Config, ListOf, Schema, Value, look_up
from longtail.runtime.settings import between, configurable, learned, setting
from longtail.runtime.store import Files
from longtail.runtime.workers import cluster_in_use
from longtail.text.tfidf import Tfidf
from longtail.topk import NO_LABEL, TopK

MOST_MEMBERS = 1000
STACKED = 44  # bytes for each number that describes a candidate, while stacking is learned
BATCH = 4096  # documents that members are asked about together


class _Run(NamedTuple):
    """A training that is planned: when it began, the documents as rows, and the plan."""

    began: float
    features: Tfidf | None
    X: sp.csr_matrix
    facts: Facts
    prober: Prober
    plan: Plan


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
        run = self._begin(dataset, progress)
        for line in run.plan.lines(run.facts):
            progress.say(line)
        self._say_memory(run, dataset.Y, progress)
        cluster = cluster_in_use()
        new_trainer = MemberTrainer if cluster is None else partial(ClusterTrainer, cluster)
        trainer = new_trainer(
            dataset,
            run.X,
            run.plan,
            run.facts,
            device=self.device,
            seed=self.seed,
            began=run.began,
            run_dir=self.run_dir,
            resume=self.resume,
            checkpoint_seconds=self.checkpoint_seconds,
            progress=progress,
        )
        self.features_, self.n_features_ = run.features, int(run.X.shape[1])
        self.shares_ = label_shares(dataset.Y)
        held, judge = self._hold_out(trainer, run.prober, dataset)
        held = self._drop(trainer, held, judge, dataset)
        self._finish(trainer, held, dataset)
        self._report(trainer, held, judge, dataset)
        took = ", ".join(f"{name} {format_seconds(s)}" for name, s in trainer.taken.items())
        progress.say(f"Trained in {format_seconds(time.monotonic() - run.began)}: {took}")

    def plan_lines(self, data: Documents, labels: Any = None) -> list[str]:
        """Return the plan for these documents, as `fit` shows it before it trains."""
        self.check_parameters()
        run = self._begin(as_dataset(data, labels), SILENT)
        return run.plan.lines(run.facts)

    def _begin(self, dataset: Dataset, progress: Progress) -> "_Run":
        """Make rows of the documents, measure the members, and plan."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ParameterError("fusion is trained by one process; start it without torchrun")
        began = time.monotonic() if self.began is None else self.began
        features, X = self.learn_features(dataset, progress)
        self._check_shared(features, X, dataset)
        facts, usable = find_facts(dataset, X, self.members, self.device)
        budget = find_budget(self.budget, self.members)
        prober = Prober(
            dataset,
            X,
            facts,
            budget=budget,
            began=began,
            device=self.device,
            seed=self.seed,
            limits=self._limits,
        )
        named = None if self.members is None else parse_members(self.members)
        if budget is not None:
            progress.stage("measuring members", 1)
        for _ in range(2):  # the second time, all is measured and the time for that is known
            spent = time.monotonic() - began
            plan = make_plan(facts, usable, named, budget, prober, spent, self._limits)
        return _Run(began, features, X, facts, prober, plan)

    @property
    def _limits(self) -> Limits:
        return Limits.parse(self.max_size, self.max_latency)

    def _check_shared(self, features: Tfidf | None, X: sp.csr_matrix, dataset: Dataset) -> None:
        """Raise ParameterError if words and label names alone are more than is allowed."""
        if self._limits.any:
            shared = self._weigh_shared(features, dataset)
            what = "what all models share, words and label names,"
            self._limits.refuse(shared, what, "allow more than that")

    def _weigh_shared(self, features: Tfidf | None, dataset: Dataset) -> Weight:
        """Return what words and labels cost."""
        files = Files(
            arrays={"label_counts": np.zeros(dataset.n_labels, np.int64)},
            texts={"label_names": list(dataset.label_names)},
        )
        if features is None:
            return Weight(files.n_bytes, 0.0)
        features.to_files(files)
        texts = dataset.texts or []
        takes = time_documents(lambda i: features.transform([texts[i]]), len(texts))
        return Weight(files.n_bytes, takes)

    def _say_memory(self, run: "_Run", Y: sp.csr_matrix, progress: Progress) -> None:
        """Say what the members take, one after the other; one that does not fit is left out."""
        X, plan, device, features = run.X, run.plan, run.facts.device, run.features
        texts = {} if features is None else {"rows of texts": size_of(X) + features.n_bytes}
        fold = 2 * int(size_of(X, Y) * plan.scheme.largest_share)
        members = [member.make() for member in plan.members]
        kept = [model.kept_of(X, Y) for model in members]
        # The models of all folds stay until stacking has their scores, one of each member until it
        # has been trained on all documents.
        n_models = max(1, plan.scheme.folds)
        to_refit = sum(kept) if plan.scheme.folds and plan.scheme.refit else 0
        needs = [model.needs_of(X, Y, device) for model in members]
        stages = []
        for number, own in enumerate(needs):
            others = {
                "other members": max(to_refit, n_models * sum(kept[:number])),
                "rows of a fold": fold,
                "workspace": WORKSPACE,
                **texts,
            }
            stages += [stage.also(others) for stage in own]
        width = min(USUAL_PROPOSED * len(plan.members), Y.shape[1])
        n_numbers = plan.scheme.count_held(X.shape[0]) * width * count_inputs(len(plan.members))
        stacked = {"stacking": STACKED * n_numbers, "members": n_models * sum(kept)}
        stages.append(Stage({**stacked, **texts}))
        plan_text = memory.plan_memory(stages, device=device, refuse=False)
        if total_ram(stages) >= WORTH_SAYING:
            progress.say(f"Memory: {plan_text}")

    def _hold_out(
        self, trainer: MemberTrainer, prober: Prober, dataset: Dataset
    ) -> tuple[dict[str, HeldOutMember], Judge]:
        """Train each member with documents held out, then others for the time that is left."""
        width = min(MOST_PROPOSED, dataset.Y.shape[1])
        judge = Judge(trainer)
        if not trainer.splits:
            return {}, judge

        def hold_out(member: Member) -> HeldOutMember | None:
            is_first = not trainer.taken
            found = trainer.hold_out(member, width)
            if found is not None and is_first:
                judge.prepare({member.name: found})
            return found

        held = trainer.in_lanes(hold_out, trainer.plan.members)
        if held and self.members is None and dataset.Y[judge.rows].nnz:
            grow(trainer, held, judge, prober, width, self._limits)
        return held, judge

    def _drop(
        self,
        trainer: MemberTrainer,
        held: dict[str, HeldOutMember],
        judge: Judge,
        dataset: Dataset,
    ) -> dict[str, HeldOutMember]:
        """Return the members without those that make the fusion too large or too slow."""
        if not self._limits.any or not held:
            return held
        n = trainer.facts.n_documents
        grown = n / (n - n * trainer.plan.scheme.share) if trainer.plan.scheme.refit else 1.0
        weights = {name: self._weigh(each.model, trainer, grown) for name, each in held.items()}
        shared = self._weigh_shared(self.features_, dataset)
        kept = choose_members(
            weights,
            shared,
            self._limits,
            lambda names: judge.precision({name: held[name] for name in names}),
        )
        for name in held:
            if name not in kept:
                trainer.forget(name)
                trainer.progress.say(f"{name} is left out, to be within the limits")
        return {name: held[name] for name in kept}

    def _weigh(self, model: Model, trainer: MemberTrainer, grown: float = 1.0) -> Weight:
        """Return what a member costs; its bytes grow with the documents."""
        rows = np.arange(min(TIMED, trainer.facts.n_documents))
        takes = time_documents(
            lambda i: trainer.predict(
                model, rows[i : i + 1], min(MOST_PROPOSED, len(self.shares_))
            ),
            len(rows),
        )
        files = model.to_files()
        files.texts.pop("label_names", None)
        return Weight(int(grown * files.n_bytes), takes)

    def _learn_stacking(
        self, trainer: MemberTrainer, dataset: Dataset, held: Mapping[str, HeldOutMember]
    ) -> Stacker:
        """Learn the stacker from the held-out documents of all folds."""
        trainer.progress.stage("stacking", 1)

        def score(fold: int, name: str, labels: NDArray[np.int32]) -> NDArray[np.float32]:
            return trainer.score(held[name].model_of(fold), trainer.splits[fold][1], labels)

        choice = learn_stacking(
            {name: each.lists for name, each in held.items()},
            trainer.splits,
            dataset,
            self.stacker,
            score=score,
            costs={name: each.model.milliseconds for name, each in held.items()},
        )
        trainer.progress.advance(1)
        if choice is None:
            trainer.progress.say(
                "The held-out documents carry no label: all members get the same weight"
            )
            return Stacker.plain_mean(len(held))
        self.held_out_ = HeldOut(choice.rows, choice.unseen)
        self.proposers_ = choice.proposers
        for line in choice.lines():
            trainer.progress.say(line)
        return choice.stacker

    def _finish(
        self, trainer: MemberTrainer, held: Mapping[str, HeldOutMember], dataset: Dataset
    ) -> None:
        """Learn the stacker, train the members on all documents if the plan says so."""
        self.held_out_, self.proposers_ = None, {}
        members = [each.member for each in held.values()]
        done = {name: each.model for name, each in held.items()}
        stacker = self._learn_stacking(trainer, dataset, held) if held else None
        if not held:  # such as with one labelled document, which a fold must do without
            members = list(trainer.plan.members)
            if trainer.splits:
                trainer.progress.say("Nothing could be held out: all members get the same weight")
        for each in held.values():
            each.models.clear()  # `done` has what is needed of them
        if trainer.plan.scheme.refit or not held:
            done = trainer.in_lanes(
                lambda member: trainer.refit(member, done.pop(member.name, None)), members
            )
        if not done:
            raise TrainingError("no member of the fusion could be trained; the lines above say why")
        self.members_ = done
        self.proposers_ = self.proposers_ or dict.fromkeys(done, USUAL_PROPOSED)
        self.stacker_ = Stacker.plain_mean(len(done)) if stacker is None else stacker

    def _report(
        self,
        trainer: MemberTrainer,
        held: Mapping[str, HeldOutMember],
        judge: Judge,
        dataset: Dataset,
    ) -> None:
        """Say and keep what each member gains, weighs and takes."""
        gains = judge.gains(held) if self.held_out_ is not None else {}
        self.report_ = {
            name: MemberReport(
                gains.get(name), *self._weigh(model, trainer), trainer.taken.get(name, 0.0)
            )
            for name, model in self.members_.items()
        }
        trainer.progress.say("Members (gain: percent of precision on held-out documents):")
        for line in self.describe_training():
            trainer.progress.say(f"  {line}")
        if self._limits.any:
            shared = self._weigh_shared(self.features_, dataset)
            whole = add_up(shared, [report.weight for report in self.report_.values()])
            is_over = "" if self._limits.allow(whole) else ", which is more than was asked for"
            trainer.progress.say(f"  together: about {say_weight(whole)}{is_over}")

    def describe_training(self) -> list[str]:
        """Return what each member gains, weighs and takes, for the card."""
        return [f"{name}: {report.line()}" for name, report in self.report_.items()]

    # -- predicting ---------------------------------------------------------------------------

    def predict_documents(self, documents: list[str] | sp.csr_matrix, k: int) -> TopK:
        """Let some members propose labels and all score them, then rank these by the stacker."""
        X = self._as_rows(documents)
        if X.shape[0] == 0:
            return TopK(np.empty((0, k), np.int32), np.empty((0, k), np.float32))
        tops = [
            self._rank(ask(self.members_, self.proposers_, *some, self._n_labels, k=k), k)
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

    def _rank(self, said: Said, k: int) -> TopK:
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
        text = document if isinstance(document, str) else None
        documents = in_memory(self.check_documents(document if text is None else [text]))
        X = self._as_rows(documents)
        if X.shape[0] != 1:
            raise DataError(f"one document can be explained at a time; got {X.shape[0]}")
        asked = [int(each) for each in self.predict(documents).labels[0] if each != NO_LABEL]
        asked = asked if label is None else [self._find_label(label)]
        said, names = self._ask_about(asked, documents, X), self.label_names_.__getitem__
        votes = count_votes(self.stacker_, said, list(self.members_), self.shares_, asked, names)
        return Explanation(
            text,
            label,
            self._weigh_terms(text, documents, X, asked),
            members=_share_out(votes),
            neighbours=self._find_similar(X, label),
            votes=votes,
            member_terms=self._explain_members(text, label, X),
        )

    def _ask_about(
        self, labels: Sequence[int], documents: list[str] | sp.csr_matrix, X: sp.csr_matrix
    ) -> Said:
        """Return what members say of these labels, and of those that are proposed."""
        also = np.tile(np.array(labels, np.int32), (X.shape[0], 1))
        return ask(self.members_, self.proposers_, documents, X, self._n_labels, also=also)

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
            variants = leave_out_features(X)
        if not variants.names:
            return []

        def judge(some: Any, rows: sp.csr_matrix) -> NDArray[np.float64]:
            said = self._ask_about(asked, some, rows)
            return log_odds_of(self.stacker_, describe_candidates(said, self.shares_), asked)

        after = judge(variants.documents, self._as_rows(variants.documents))
        return weigh_terms(variants, judge(documents, X)[0], after)

    def _find_similar(self, X: sp.csr_matrix, label: str | None) -> Sequence[Neighbour]:
        """Return similar training documents, of the first member that knows any."""
        wanted = None if label is None else self._find_label(label)
        found = (member.find_similar(X, wanted) for member in self.members_.values() if X.nnz)
        return next(filter(None, found), ())

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
        members = dict(self.members_)
        rows = Dataset(dataset.Y, dataset.label_names, X=X)
        for name in able:
            member = copy(members[name])
            reads_rows = member.trained_on == "rows"
            more = rows if reads_rows else replace(dataset, label_uris=None)
            member.partial_fit(more, train=train and member.trains_on, progress=progress)
            if dataset.texts is not None and reads_rows:
                member.add_snippets(dataset.texts)
            members[name] = member
        others = [name for name in members if name not in able]
        if others:
            progress.say(f"{', '.join(others)}: left as they are, as they cannot be updated")
        if not any(name in self.proposers_ for name in able):  # nobody would propose a new label
            self.proposers_ = {**self.proposers_, able[0]: USUAL_PROPOSED}
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
        files.config["report"] = {name: each._asdict() for name, each in self.report_.items()}
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
        facts: Config = {
            "report": dict.fromkeys(names, MemberReport.describe()),
            "proposers": dict.fromkeys(proposers, Value(int, between(1, MOST_PROPOSED))),
        }
        own = [listed, Schema(config=facts), Stacker.describe(len(names))]
        return Schema.join([*own, describe_shared(), Schema(members=names)])

    def restore(self, files: Files) -> None:
        """Take back what was saved; raise ValueError for members that do not fit together."""
        names, files = files.config["members"], unshare(files)
        self.members_ = {name: self._restore_member(files, name) for name in names}
        self.proposers_ = files.config["proposers"]
        self.report_ = {name: MemberReport(**files.config["report"][name]) for name in names}
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


def _share_out(votes: Sequence[Vote]) -> dict[str, float]:
    """Return which share of all weights comes from each member."""
    given: dict[str, float] = {}
    for vote in votes:
        given[vote.member] = given.get(vote.member, 0.0) + vote.weight
    total = sum(map(abs, given.values())) or 1.0
    return {member: weight / total for member, weight in given.items()}
