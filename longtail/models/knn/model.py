"""KNN: the nearest training documents vote for their labels.

No paper of its own: the oldest idea of the field, and hard to beat on rare labels. Near is what has
a high cosine, either of tf-idf rows (`space=tfidf`, found exactly, see `knn_search`) or of another
model's embeddings (`space=glas`, `mnn` or `dxml`, which is trained first; the folder of such a
model; or in Python a trained one). A neighbour with cosine s counts e^(s/T), the nearest 1, and a
label's score is the share of all counts that falls to those who carry it.

How many neighbours vote, T, and how much rare words count in tf-idf are chosen by documents that do
not vote on themselves: in tf-idf each is asked for its neighbours without itself. Embeddings have
seen the labels of the documents that they were trained on; so a first training holds a tenth of
them out, to choose by these.

    n, T         n_neighbours, temperature
    voters_      the documents that vote: where they lie, their labels, how they vote
    numbers_     (n,) the number of each of them, from 0, in the order in which the model got them
    snippets_    the first characters of their texts; empty if they came as rows
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset
from longtail.errors import ParameterError
from longtail.evaluation.explanation import Explanation, Neighbour
from longtail.evaluation.metrics import evaluate_documents
from longtail.models.base import Model
from longtail.models.contract import Documents
from longtail.models.cost import Facts
from longtail.models.knn.space import (
    RARITIES,
    EmbeddingSpace,
    Space,
    WordSpace,
    weigh_words,
)
from longtail.models.registry import find_models
from longtail.progress import Progress
from longtail.runtime.mapped import Texts as MappedTexts
from longtail.runtime.mapped import in_memory, is_mapped, take_rows
from longtail.runtime.memory import Needs, Stage, size_of
from longtail.runtime.schema import Schema, Texts, indices
from longtail.runtime.settings import at_least, between, configurable, learned, seeds, setting
from longtail.runtime.store import Files
from longtail.search.sparse import AT_ONCE
from longtail.search.voters import (
    Nearest,
    Neighbours,
    Voters,
    Voting,
    choose_voting,
    count_carriers,
    leave_out,
    weigh_votes,
)
from longtail.topk import TopK
from longtail.visible import spell_count

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]

TFIDF = "tfidf"
NUMBERS = (3, 5, 7, 10, 15, 20, 30, 50, 80, 120, 200)  # of neighbours, to choose from
TEMPERATURES = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
USUAL = Voting(50, 0.05)  # where there is nothing to choose by
HELD_OUT, MOST_ASKED = 0.1, 3000  # documents that choose
SHOWN = 5  # neighbours in an explanation
AGAINST = 2  # of them, in that of a label, which do not carry it


@configurable
class KNN(Model):
    """The nearest training documents vote for their labels."""

    name: ClassVar[str] = "knn"
    summary: ClassVar[str] = "the nearest training documents vote for their labels"
    choose_when: ClassVar[str] = "you want to see the documents behind each label, or add new ones"
    can_update: ClassVar[bool] = True
    trains_on: ClassVar[bool] = False
    can_explain: ClassVar[bool] = True
    member_order: ClassVar[int | None] = 2
    member_reason: ClassVar[str] = "finds what similar documents carry"
    milliseconds: ClassVar[float] = 0.9
    least_sample: ClassVar[int] = MOST_ASKED  # below that, each is compared with each

    space: str | Model = setting(
        TFIDF,
        "where documents are near: tfidf, a model to train for its embedding (glas, mnn or dxml), "
        "or the folder of one that is trained already",
    )
    n_neighbours: int | None = setting(
        None, "how many documents vote; none chooses by held-out documents", at_least(1)
    )
    temperature: float | None = setting(
        None,
        "the smaller, the more the nearest count; none chooses by held-out documents",
        at_least(0.0001),
    )
    idf: bool = setting(
        True, "weight the features of rows by how rare they are; texts have such weights already"
    )
    rarity: float | None = setting(
        None,
        "power of idf by which features are weighted once more (tfidf only); 0 leaves them, none "
        "chooses by held-out documents",
        between(-5, 5),
    )
    snippet_chars: int = setting(
        200, "how many characters of each training text to keep, for explanations", at_least(0)
    )
    seed: int = setting(0, "fixes which documents choose, and the training of a space", seeds())

    space_: Space = learned()
    voters_: Voters = learned()
    numbers_: NDArray[np.int64] = learned()
    snippets_: Sequence[str] = learned()

    def get_parameters(self) -> dict[str, Any]:
        """Return the constructor's parameters; a model that is the space, by its name."""
        space = self.space.name if isinstance(self.space, Model) else self.space
        return {**super().get_parameters(), "space": space}

    def check_parameters(self) -> None:
        """Raise ParameterError for the first parameter that is out of range."""
        super().check_parameters()
        if isinstance(self.space, Model):
            _embedding_of(self.space)
        elif self.space != TFIDF and self.space not in _embedding_models():
            there = Path(self.space).is_dir()
            names = ", ".join([TFIDF, *_embedding_models()])
            self.require("space", there, f"one of {names}, or the folder of such a model")

    @property
    def may_know_documents(self) -> bool:
        """Whether the space is a trained model."""
        return self.space != TFIDF and self.space not in _embedding_models()

    @classmethod
    def estimate_cost(cls, facts: Facts, preset: str | None = None) -> float:
        """At most 3,000 documents are compared with all others, on a CPU always.

        475,974 titles took 4.5 s on two cores, 33,485 questions 1.9 s, 12,920 documents of 19
        labels 2 s: most of it to try ways to vote.
        """
        asked = min(facts.n_documents, MOST_ASKED)
        return 0.1 + 2 * asked / MOST_ASKED + 4e-7 * facts.n_values

    # -- learning -----------------------------------------------------------------------------

    def fit_documents(self, dataset: Dataset, progress: Progress) -> None:
        """Place the documents in the space, and choose how they vote."""
        if self.space == TFIDF:
            super().fit_documents(dataset, progress)
        else:
            self._fit_embedded(dataset, progress)
        self.snippets_ = self._cut(dataset, self.numbers_)
        if self.snippets_:
            size = sum(len(text.encode("utf-8", "surrogatepass")) for text in self.snippets_) / 1e6
            progress.say(
                f"Keeping the first {self.snippet_chars} characters of "
                f"{spell_count(len(self.snippets_), 'text')} to explain with "
                f"({size:.1f} MB; snippet_chars=0 keeps none)"
            )

    def fit_rows(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> None:
        """Place the rows by the words they share, then ask some for all others."""
        self.say_memory(lambda m: m.needs_of(X, Y, "cpu"), ({"rarity": 0.0},), progress)
        rarities = RARITIES if self.rarity is None else (self.rarity,)
        progress.stage("choosing neighbours", len(rarities))
        labelled = np.flatnonzero(np.diff(Y.indptr))
        voters, votes = take_rows(X, labelled), Y[labelled]

        def attempt(rarity: float) -> tuple[Voting, Space, Nearest]:
            space = WordSpace(weigh_words(X, self.idf, rarity))
            index = self._index(space, voters)
            voting = self._ask(index, votes)
            progress.advance(1)
            return voting, space, index

        attempts = map(attempt, rarities)  # one at a time, as each takes as much memory as X
        voting, space, index = max(attempts, key=lambda found: found[0].score)
        self._keep(space, index, Y, voting, progress)

    def needs_of(self, X: sp.csr_matrix, Y: sp.csr_matrix, device_type: str) -> Needs:
        """Return what two indexes take: the best so far, and the one that is tried."""
        n, n_features = X.shape
        index = self.kept_of(X, Y)
        n_indexes = 1 if self.rarity is not None else 2
        held, labels = 8 * X.nnz, size_of(Y)
        if is_mapped(X):  # then they lie in files, but for what is worked on, and for labels
            held, labels = 32 * min(X.nnz, AT_ONCE), 8 * (Y.nnz + n)
        rows = held + 24 * n + 16 * n_features + 2 * labels
        return (Stage({"indexes": n_indexes * index, "rows": rows}),)

    def kept_of(self, X: sp.csr_matrix, Y: sp.csr_matrix) -> int:
        """Return what one index takes; of rows that lie in files, its lists do, too."""
        held = 16 * X.nnz * (not is_mapped(X))
        return held + 12 * X.shape[0] + 20 * X.shape[1]

    def _ask(self, index: Nearest, Y: sp.csr_matrix) -> Voting:
        """Ask some documents for their neighbours without themselves, and choose by these."""
        if not self._is_open() and self.rarity is not None:
            return self._given()
        order = np.random.default_rng(self.seed).permutation(Y.shape[0])
        asked = np.sort(order[:MOST_ASKED])
        ids, cosines = index.search(index.take(asked), max(NUMBERS) + 1)
        return self._choose(*leave_out(ids, cosines, asked), Y, Y[asked])

    def _choose(self, ids: Ids, cosines: Floats, Y: sp.csr_matrix, wanted: sp.csr_matrix) -> Voting:
        """Choose what is not given by how well neighbours rank the labels `wanted`."""
        given = self._given()
        if not wanted.nnz or not ids.shape[1]:
            return given
        numbers = [n for n in NUMBERS if n <= ids.shape[1]] or [ids.shape[1]]
        return choose_voting(
            ids,
            cosines,
            Y,
            lambda top: evaluate_documents(top, wanted, k=5)["nDCG@5"].percent(),
            numbers=[self.n_neighbours] if self.n_neighbours else numbers,
            temperatures=[self.temperature] if self.temperature else TEMPERATURES,
            alternate_from=given,  # as trying all pairs takes five times as long
        )

    def _fit_embedded(self, dataset: Dataset, progress: Progress) -> None:
        """Take or train the model whose embedding is the space."""
        source = self.space if isinstance(self.space, Model) else None
        if isinstance(self.space, str) and self.space not in _embedding_models():
            source = _load(self.space)
        voting = self._given()  # as a model that is trained already has seen all documents
        if source is None and self._is_open():
            voting = self._try(dataset, progress)
        source = source or self._train_space(dataset, progress)
        space = _embedding_of(source)
        labelled = np.flatnonzero(np.diff(dataset.Y.indptr))
        index = self._index(space, _rows_of(source, dataset)[labelled])
        self.features_, self.n_features_ = source.features_, source.n_features_
        self._keep(space, index, dataset.Y, voting, progress)

    @property
    def choices(self) -> dict[str, Any]:
        """How neighbours vote."""
        n, temperature = self.voters_.n_neighbours, self.voters_.temperature
        return {"n_neighbours": n, "temperature": temperature}

    def _is_open(self) -> bool:
        """Whether there is anything to choose."""
        return None in (self.n_neighbours, self.temperature)

    def _given(self) -> Voting:
        """Return what the parameters say, and what is usual where they say nothing."""
        return Voting(
            self.n_neighbours or USUAL.n_neighbours, self.temperature or USUAL.temperature
        )

    def _keep(
        self,
        space: Space,
        index: Nearest,
        Y: sp.csr_matrix,
        voting: Voting,
        progress: Progress,
    ) -> None:
        """Keep the labelled documents, which are those in the index, as voters."""
        n, temperature, _ = voting
        self.numbers_ = np.flatnonzero(np.diff(Y.indptr))
        self.space_, self.snippets_ = space, ()
        self.voters_ = Voters(index, Y[self.numbers_], n, temperature)
        if self._is_open():
            progress.say(f"{n} neighbours vote, at a temperature of {temperature:g}")

    def _try(self, dataset: Dataset, progress: Progress) -> Voting:
        """Train the space without some documents, and choose by these how neighbours vote."""
        kept, held = dataset, dataset
        if len(dataset) > 1:
            kept, held = dataset.split(min(HELD_OUT, MOST_ASKED / len(dataset)), self.seed)
        if not kept.Y.nnz:
            kept, held = held, kept
        source = self._train_space(kept, progress)
        space = _embedding_of(source)
        labelled = np.flatnonzero(np.diff(kept.Y.indptr))
        index = self._index(space, _rows_of(source, kept)[labelled])
        ids, cosines = index.search(space.place(_rows_of(source, held)), max(NUMBERS))
        return self._choose(ids, cosines, kept.Y[labelled], held.Y)

    def _train_space(self, dataset: Dataset, progress: Progress) -> Model:
        """Train the model that `space` names."""
        from longtail.models import get_model_class

        model = get_model_class(cast(str, self.space)).from_settings({"seed": self.seed})
        model.tfidf = self.tfidf
        return model.fit(dataset, progress=progress)

    def _index(self, space: Space, X: sp.csr_matrix) -> Nearest:
        """Place documents and prepare them for search."""
        return space.build_index(space.place(X), max(NUMBERS), self.seed)

    def keep_snippets(self, texts: Sequence[str]) -> None:
        """Keep the first characters of the texts that the rows it was trained on came from."""
        if self.snippet_chars:
            self.snippets_ = [texts[i][: self.snippet_chars] for i in self.numbers_.tolist()]

    def _cut(self, dataset: Dataset, numbers: NDArray[np.int64]) -> Sequence[str]:
        """Return the first characters of these texts, in a file as those are."""
        if dataset.texts is None or not self.snippet_chars:
            return []
        cut = (dataset.texts[i][: self.snippet_chars] for i in numbers.tolist())
        return MappedTexts.of(cut) if isinstance(dataset.texts, MappedTexts) else list(cut)

    # -- predicting -----------------------------------------------------------------------------

    def read_rows(self, X: sp.csr_matrix) -> Neighbours:
        """Find the nearest documents."""
        return self.voters_.find(self.space_.place(X))

    def predict_rows(self, X: Neighbours, k: int) -> TopK:
        """Let the nearest documents vote; labels that none carries follow by frequency."""
        return self.voters_.rank_labels(X, k)

    def score_rows(self, X: Neighbours, candidates: Ids) -> Floats:
        """Count the votes of the nearest documents for the candidates; without any, it is 0."""
        return self.voters_.score_labels(X, candidates)

    def _search(self, X: sp.csr_matrix, at_least: int = 1) -> tuple[Ids, Floats]:
        return self.voters_.search(self.space_.place(X), at_least)

    def find_neighbours(self, data: Documents) -> tuple[NDArray[np.int64], Floats]:
        """Return the nearest training documents by number, and their cosines, both (n, m).

        Documents count from 0 in the order that the model got them; -1 stands where none is near.
        """
        self._check_fitted()
        ids, cosines = self._search(self._rows_of(data))
        numbers = np.where(ids >= 0, self.numbers_[np.maximum(ids, 0)], -1)
        return numbers, cosines

    def count_neighbours(self, data: Documents, labels: Ids) -> Ids:
        """Return how many of each document's neighbours carry the `labels` (n, k) asked about."""
        self._check_fitted()
        ids, _ = self._search(self._rows_of(data))
        return count_carriers(ids, self.voters_.Y, labels)

    # -- explaining -----------------------------------------------------------------------------

    def explain(
        self, document: str | sp.spmatrix | sp.sparray, label: str | None = None
    ) -> Explanation:
        """Show the nearest documents, or with a label the nearest that carry it, and the words.

        The words that a document shares with its neighbours are known in tf-idf only.
        """
        self._check_fitted()
        if isinstance(self.space_, WordSpace):
            found = super().explain(document, label)
        else:
            self.check_documents([document] if isinstance(document, str) else document)
            found = Explanation(document if isinstance(document, str) else None, label, ())
        X = self._rows_of([document] if isinstance(document, str) else document)
        chosen = None if label is None else self._find_label(label)
        return replace(found, neighbours=self.find_similar(X, chosen))

    def find_similar(self, X: sp.csr_matrix, label: int | None) -> Sequence[Neighbour]:
        """Return the nearest documents; of a label, those that carry it, then some that do not.

        The first speak for the label, however far they are; the others speak against it.
        """
        ids, cosines = self._search(X, SHOWN)
        found = zip(ids[0].tolist(), cosines[0].tolist(), strict=True)
        near = [(i, cosine) for i, cosine in found if i >= 0]
        if label is not None:
            others = [(i, cosine) for i, cosine in near if label not in self.voters_.Y[i].indices]
            near = self._find_nearest(X, label) + others[:AGAINST]
        return [self._show(i, cosine) for i, cosine in near[:SHOWN]]

    def _find_nearest(self, X: sp.csr_matrix, label: int) -> list[tuple[int, float]]:
        """Return the nearest documents that carry a label, with their cosines."""
        return self.voters_.find_nearest(self.space_.place(X), label, SHOWN - AGAINST)

    def _show(self, i: int, similarity: float) -> Neighbour:
        """Return one of the voters as it is shown."""
        return Neighbour(
            number=int(self.numbers_[i]),
            similarity=similarity,
            labels=tuple(self.label_names_[each] for each in self.voters_.Y[i].indices.tolist()),
            text=self.snippets_[i] if self.snippets_ else None,
        )

    def find_examples(self, label: int, n: int) -> Sequence[Neighbour]:
        """Return documents that carry the label, those with the fewest other labels first."""
        carriers = self.voters_.find_carriers(label)
        order = np.argsort(np.diff(self.voters_.Y.indptr)[carriers], kind="stable")[:n]
        return [self._show(i, 1.0) for i in carriers[order].tolist()]

    def find_near_labels(self, label: int, n: int) -> Sequence[tuple[int, float]]:
        """Return the labels that are often on the same documents."""
        return self.voters_.rank_companions(label, n)

    def explain_row(self, X: sp.csr_matrix, label: int | None) -> Floats:
        """Return how much each word gives to the cosines of those who vote.

        Of a label, it is what it gives to those who carry it, less what it gives to the others. If
        none of them carries it, the nearest that do speak for it.
        """
        ids, cosines = self._search(X)
        votes = weigh_votes(cosines, self.voters_.temperature)[0]
        near, votes = ids[0][ids[0] >= 0], votes[ids[0] >= 0]
        if label is not None:
            carries = np.asarray(self.voters_.Y[near][:, label].todense()).ravel() > 0
            votes = np.where(carries, votes, -votes)
            if not carries.any():
                found = [i for i, _ in self._find_nearest(X, label)]
                near = np.concatenate([near, np.array(found, near.dtype)])
                votes = np.concatenate([votes, np.full(len(found), 1 / max(len(found), 1))])
        own = self.space_.place(X)
        places = self.voters_.index.take(near)
        shared = np.asarray(votes @ places[:, own.indices]).ravel()
        weights: Floats = (own.data * shared).astype(np.float32)
        return weights

    # -- more documents -------------------------------------------------------------------------

    @property
    def n_kept(self) -> int:
        """How many documents vote."""
        return len(self.numbers_)

    def update_documents(
        self, dataset: Dataset, X: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Take in more documents, with the beginnings of their texts."""
        super().update_documents(dataset, X, train, progress)
        self.add_snippets(dataset.texts or [])

    def add_snippets(self, texts: Sequence[str]) -> None:
        """Keep the beginnings of the texts that the rows of an update came from."""
        if self.snippet_chars:
            self.snippets_ = [*self.snippets_, *(text[: self.snippet_chars] for text in texts)]

    def update_rows(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Place the new documents beside the others."""
        places = self.space_.join(self.voters_.index.vectors, self.space_.place(X))
        index = self.space_.build_index(places, max(NUMBERS), self.seed)
        new = self.training_counts_.n_documents + self.added_
        self.voters_ = replace(self.voters_, index=index, Y=self.voters_.join_labels(Y))
        self.numbers_ = np.concatenate([self.numbers_, new])

    # -- saving -----------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add the space, the documents with their labels, and how they vote."""
        self.space_.add_to_files(files)
        self.voters_.add_to_files(files)
        files.arrays["numbers"] = self.numbers_
        files.texts["snippets"] = self.snippets_

    def describe(self, files: Files) -> Schema:
        """Return the schema of the space, and of the documents with their labels."""
        documents = Schema(
            arrays={"numbers": indices("voters.n", into="n_documents", dtypes=(np.int64,))},
            texts={"snippets": Texts("voters.n", empty=True)},
        )
        if "space.weights" in files.arrays:
            return documents | WordSpace.describe() | Voters.describe(files, "n_features")
        return documents | EmbeddingSpace.describe(files) | Voters.describe(files, "dim")

    def restore(self, files: Files) -> None:
        """Take back what was saved."""
        of_words = "space.weights" in files.arrays
        opener = WordSpace.from_files if of_words else EmbeddingSpace.from_files
        self.space_ = cast(Space, opener(files))
        self.voters_ = Voters.from_files(files, len(self.label_names_))
        self.numbers_, self.snippets_ = files.arrays["numbers"], files.texts["snippets"]


# -- the models whose embeddings can be a space ----------------------------------------------------


def _embedding_models() -> list[str]:
    return [model.name for model in find_models()[0] if model.has_embeddings]


def _embedding_of(model: Model) -> EmbeddingSpace:
    """Return the space of a trained model's embeddings, or say that it has none."""
    embedder = getattr(model, "embedder_", None)
    if embedder is None:
        reason = "has no embeddings" if model.is_fitted else "is not trained or has no embeddings"
        raise ParameterError(
            f"documents cannot be placed by this {model.name} model, which {reason}; "
            f"models that have: {', '.join(_embedding_models())}"
        )
    return EmbeddingSpace(embedder, bool(getattr(model, "normalize", True)))


def _load(folder: str) -> Model:
    from longtail.models import load_model

    return load_model(folder)


def _rows_of(model: Model, dataset: Dataset) -> sp.csr_matrix:
    """Return the documents as the rows that `model` reads."""
    documents = in_memory(model.check_documents(dataset))
    if isinstance(documents, list):
        if model.features_ is None:
            raise ParameterError(
                f"a {model.name} model cannot be a space: it makes no rows of texts"
            )
        return model.features_.transform(documents)
    return documents
