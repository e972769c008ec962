"""AttentionXML in training: one level of the tree after the other (sections 2.3 and 2.5).

Symbols are those of `network.py`. Each level is a Task of the training loop. In every step the
first level scores all its nodes; a deeper one scores, for each document, the children of its
candidates: the parents of its labels, then the nodes that the level above ranks highest.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from longtail.evaluation.metrics import evaluate
from longtail.labels.tree import LabelTree
from longtail.models.attention_xml.loss import bce_over_candidates, bce_over_nodes
from longtail.models.attention_xml.network import (
    AttentionXMLNetwork,
    Encoded,
    Shape,
    count_aligned,
    find_padding,
)
from longtail.models.attention_xml.search import (
    Beam,
    Ints,
    ProbabilisticLabelTree,
    list_children,
    rank_nodes,
)
from longtail.progress import Progress
from longtail.runtime.compiled import njit
from longtail.runtime.rows import Rows, pairs_of, view_rows
from longtail.text.tokens import PADDING, UNKNOWN, TokenRows
from longtail.topk import TopK
from longtail.training.config import TrainingConfig
from longtail.training.history import History
from longtail.training.kernels import has_triton
from longtail.training.layers import EVERY, RowAdam, read_once, take_rows
from longtail.training.loop import train
from longtail.training.processes import Processes, choose_device
from longtail.training.split import gather_documents, gather_rows, own_rows

if TYPE_CHECKING:
    from longtail.models.attention_xml.model import AttentionXML

Whole = TypeVar("Whole", bound=np.integer[Any])

MOST_DOCUMENTS = 0.95  # the share of documents that keep all their right nodes, with room to spare


@dataclass
class LevelDocuments:
    """Documents for one level of a tree.

    Attributes:
        tokens: their words.
        nodes: (n, n_nodes) which nodes of the level, or which labels, are right.
        above: the nodes that the level above ranks highest; None on the first level.
    """

    tokens: TokenRows
    nodes: sp.csr_matrix
    above: Beam | None = None

    @classmethod
    def of(cls, tokens: TokenRows, Y: sp.csr_matrix, rows: NDArray[np.int64]) -> "LevelDocuments":
        """Return those of some documents that have a word."""
        rows = rows[tokens.lengths[rows] > 0]
        return cls(tokens.take(rows), Y[rows])

    def at(self, tree: LabelTree, level: int) -> "LevelDocuments":
        """Return the same documents with nodes of a level, 1 or more, in place of labels."""
        return LevelDocuments(self.tokens, find_nodes(self.nodes, tree, level), self.above)

    def fingerprint(self) -> str:
        """Return a few characters that change with tokens and labels."""
        total = 0
        for array in (*self.tokens, self.nodes.indptr, self.nodes.indices):
            total = crc32(np.ascontiguousarray(array).data, total)
        return f"{total:08x}"


@dataclass
class LevelTask:
    """One level of the tree, as the training loop's Task.

    Attributes:
        model: the parameters.
        net: the network of the level.
        known: documents with the nodes of this level; with the nodes above, if there are some.
        held_out: such documents for validation, or None.
        children: of the nodes above; None on the first level.
        candidates: (n, C) nodes of the level above, for each document; None if it meets all nodes.
        sharing: the processes among which the rows of nodes are split; None if each holds all.
    """

    model: "AttentionXML"
    net: AttentionXMLNetwork
    known: LevelDocuments
    held_out: LevelDocuments | None
    children: Ints | None = None
    candidates: Ints | None = None
    sharing: Processes | None = None

    def __post_init__(self) -> None:
        """View the rows."""
        self.split = () if self.sharing is None else ("labels",)
        self.module: nn.Module = self.net
        self.n_documents = self.known.tokens.n_documents
        self.lengths = self.known.tokens.lengths
        self.pairs = view_rows(self.known.nodes)
        n_nodes = np.diff(self.known.nodes.indptr)
        self.most_pairs = np.cumsum(np.sort(n_nodes)[::-1])  # of as many documents, at most

    @property
    def replays(self) -> bool:
        """Whether batches have few shapes: candidates differ in number, and keep a GPU busy.

        What lies in RAM cannot be recorded.
        """
        if self.candidates is not None or self.model.optimizer_state == "host":
            return False
        return has_triton(self.net.labels.device)

    def share(self) -> float:
        """Return which share of the nodes that documents meet is right, a little above 0."""
        met = self.n_documents * self.known.nodes.shape[1]
        if self.candidates is not None and self.children is not None:
            met = int(np.diff(self.children)[self.candidates[self.candidates >= 0]].sum())
        return (self.known.nodes.nnz + 1) / (met + 2)

    def batch(
        self, rows: NDArray[np.int64], rng: np.random.Generator, mine: slice = EVERY
    ) -> dict[str, Tensor]:
        """Return words, labels and candidates of the documents."""
        ids, lengths = self.known.tokens.pad(rows)
        ids[(rng.random(ids.shape) >= self.model.keep) & (ids > UNKNOWN)] = UNKNOWN
        if self.replays:
            ids = fill_up(ids, round_length(ids.shape[1]), PADDING)
        ids, own_lengths = ids[mine], lengths[mine]
        touched, places = number_anew(ids, self.net.shape.n_words)
        batch = {"touched": touched, "places": places, "lengths": own_lengths}
        if self.sharing is None:
            rows = rows[mine]
        else:  # own nodes are scored for all documents
            batch["all_lengths"] = lengths
        if self.candidates is None or self.children is None:
            width = count_aligned(self.net.shape.n_nodes, self.net.labels.device.type)
            documents, labels = self._keep_own(*pairs_of(self.pairs, rows))
            pairs = documents * width + labels
            if self.replays:  # what fills up is padding, and a pair behind the last document
                touched = fill_up(touched, min(ids.size, self.net.shape.n_words), PADDING)
                pairs = fill_up(pairs, self.most_pairs[len(rows) - 1], len(rows) * width)
            batch |= {"touched": touched, "pairs": pairs}
        else:
            nodes, _ = list_children(self.children, self.candidates[rows])
            filler = 0  # the row that stands where a document has no more nodes
            if self.sharing is not None:
                nodes, filler = keep_own_candidates(nodes, self.sharing)
            batch["relevant"] = mark_relevant(self.pairs, rows, nodes)
            batch["counted"] = (nodes >= 0).astype(np.float32)
            held = nodes if self.sharing is None else nodes // self.sharing.count
            batch["nodes"], batch["node_places"] = number_anew(
                np.where(nodes >= 0, held, filler).astype(np.int32), self.net.shape.n_nodes
            )
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def _keep_own(
        self, documents: NDArray[np.int64], nodes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return those of the pairs whose nodes this process holds, by their rows."""
        if self.sharing is None:
            return documents, nodes
        own = nodes % self.sharing.count == self.sharing.rank
        return documents[own], nodes[own] // self.sharing.count

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the binary cross-entropy over all nodes, or over the candidates' children."""
        net, model = self.net, self.model
        words = net.read_words(batch["places"], batch["touched"])
        read = net.encode(words, batch["lengths"], model.word_dropout, model.dropout)
        if self.sharing is not None:
            read = self._gather(read, batch["all_lengths"], self.sharing)
        n = len(read.lengths)
        if "nodes" not in batch:
            width = count_aligned(net.shape.n_nodes, words.device.type)
            relevant = torch.zeros(n * width + 1, device=words.device)
            relevant.index_fill_(0, batch["pairs"], 1)  # `relevant[…] = 1` waits for a GPU
            return bce_over_nodes(net, read, relevant[:-1].view(n, width)) / n
        rows = take_rows(net.labels, batch["nodes"])
        tried = batch["node_places"], batch["relevant"], batch["counted"]
        return bce_over_candidates(net, read, rows, *tried) / n

    def _gather(self, read: Encoded, lengths: Tensor, sharing: Processes) -> Encoded:
        """Return all documents of the step, which own nodes are to be compared with."""
        n, values, tokens = len(lengths), read.values, read.tokens
        if self.net.shape.attention:
            tokens = gather_documents(tokens, n, sharing)
        values = gather_documents(values, n, sharing)
        padding = find_padding(lengths, tokens) if n > 1 else None
        return Encoded(tokens, values, padding, lengths)

    def join(self) -> None:
        """Give the network the nodes of all processes, on the CPU."""
        if self.sharing is not None:
            labels = gather_rows(self.net.labels, self.sharing)  # as NCCL sends what is on a GPU
            net = self.net.cpu()
            net.labels = nn.Parameter(labels)
            net.shape = net.shape.with_nodes(len(net.labels))

    def optimizers(self, learning_rate: float) -> list[torch.optim.Optimizer]:
        """Return lazy Adam for the matrices of which a batch touches rows, Adam for the rest."""
        net = self.net
        net.words.requires_grad_(self.model.train_vectors)
        form = self.model.optimizer_state
        lazy = [net.words] if self.model.train_vectors else []
        if self.candidates is not None:
            read_once(net.labels)
        if self.candidates is not None or form != "float32":
            lazy.append(net.labels)
        taken = {id(parameter) for parameter in lazy}
        rest = [p for p in net.parameters() if p.requires_grad and id(p) not in taken]
        rows: list[torch.optim.Optimizer] = [
            RowAdam(each, learning_rate, form=form) for each in lazy
        ]
        return [*rows, torch.optim.Adam(rest, learning_rate, fused=True)]

    def validate(self) -> dict[str, float] | None:
        """Return the metrics on the held-out documents, for the nodes of this level."""
        if self.held_out is None:
            return None
        held, device = self.held_out, self.net.labels.device
        self.net.settle(device)  # the weights may be averages
        found = rank_nodes(self.net, held.tokens, 5, device, held.above, self.children)
        return evaluate(TopK(found.nodes, np.exp(found.logs)), held.nodes)


# -- batches of a few shapes ------------------------------------------------------------------


def round_length(length: int) -> int:
    """Return the next of the lengths to which texts are padded: at most an eighth longer, or 8."""
    apart = max(8, 1 << (length - 1).bit_length() >> 4)
    return -(-length // apart) * apart


def fill_up(values: NDArray[Whole], size: int, filler: int) -> NDArray[Whole]:
    """Return the values with so many of them, or columns of them, the last ones fillers."""
    filled = np.full((*values.shape[:-1], size), filler, values.dtype)
    filled[..., : values.shape[-1]] = values
    return filled


# -- levels of the tree -----------------------------------------------------------------------


def find_nodes(Y: sp.csr_matrix, tree: LabelTree, level: int) -> sp.csr_matrix:
    """Return which nodes of a level have a label of each document below them."""
    ancestor: NDArray[np.integer[Any]] = np.arange(tree.n_labels)
    for each in range(tree.depth, level, -1):
        ancestor = tree.parents(each)[ancestor]
    node_of = np.empty(tree.n_labels, np.int64)
    node_of[tree.leaves] = ancestor
    documents = np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr))
    ones = np.ones(Y.nnz, np.float32)
    shape = (Y.shape[0], tree.sizes[level])
    nodes = sp.csr_matrix((ones, (documents, node_of[Y.indices])), shape=shape)
    nodes.sum_duplicates()
    nodes.data[:] = 1
    return nodes


def choose_width(Y: sp.csr_matrix, tree: LabelTree, branching: int, compared: int) -> int:
    """Return how many nodes of a level to follow: those of about so many children.

    They are more where many documents have labels below more than half of them: right ones should
    leave room for as many wrong ones to learn from.
    """
    width = -(-compared // branching)
    if tree.depth < 2 or not Y.shape[0]:
        return width
    n_right = np.diff(find_nodes(Y, tree, tree.depth - 1).indptr)
    most = 2 * int(np.quantile(n_right, MOST_DOCUMENTS, method="higher"))
    return min(max(width, most), tree.sizes[-2])


def choose_candidates(parents: sp.csr_matrix, best: Ints, width: int) -> Ints:
    """Return (n, width) nodes: first the true ones, then the best predicted; −1 behind.

    Where not all true ones fit, they are those that the level above ranks highest.
    """
    return _choose(view_rows(parents), best, min(width, parents.shape[1]))


@njit(nogil=True, cache=True)
def _choose(parents: Rows, best: NDArray[np.int32], width: int) -> NDArray[np.int32]:
    chosen = np.full((len(best), width), -1, np.int32)
    for i in range(len(best)):
        true = parents.columns[parents.start[i] : parents.start[i + 1]]
        size = 0
        if len(true) > width:
            for node in best[i]:
                if size < width and (true == node).any():
                    chosen[i, size] = node
                    size += 1
        for node in np.concatenate((true, best[i])):
            if size == width:
                break
            if node >= 0 and not (chosen[i, :size] == node).any():
                chosen[i, size] = node
                size += 1
    return chosen


def keep_own_candidates(
    nodes: NDArray[np.int64], sharing: Processes
) -> tuple[NDArray[np.int64], int]:
    """Return the candidates (n, C) that this process holds, and the row that fills up.

    Adam moves every row that occurs, also by a gradient of 0: what fills up is what occurs anyway,
    and the first row of all where it would fill up if nothing was split.
    """
    own = keep_own(nodes, sharing.rank, sharing.count)
    if (sharing.rank == 0 and (nodes < 0).any()) or not (own >= 0).any():
        return own, 0
    return own, int(own[own >= 0].min()) // sharing.count


@njit(nogil=True, cache=True)
def keep_own(nodes: NDArray[np.int64], rank: int, count: int) -> NDArray[np.int64]:
    """Return of each row of nodes those that process `rank` of `count` holds, −1 behind."""
    most = 1
    for i in range(len(nodes)):
        size = 0
        for node in nodes[i]:
            size += node >= 0 and node % count == rank
        most = max(most, size)
    most = (most + 7) // 8 * 8  # tensor cores are slow with rows of other lengths
    kept = np.full((len(nodes), most), -1, np.int64)
    for i in range(len(nodes)):
        place = 0
        for node in nodes[i]:
            if node >= 0 and node % count == rank:
                kept[i, place] = node
                place += 1
    return kept


@njit(nogil=True, cache=True)
def mark_relevant(
    pairs: Rows, rows: NDArray[np.int64], nodes: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return 1 where a document carries the node, 0 elsewhere."""
    relevant = np.zeros(nodes.shape, np.float32)
    for i in range(len(rows)):
        true = pairs.columns[pairs.start[rows[i]] : pairs.start[rows[i] + 1]]
        for j in range(nodes.shape[1]):  # halving, as a document may have very many nodes
            place = np.searchsorted(true, nodes[i, j])
            relevant[i, j] = place < len(true) and true[place] == nodes[i, j]
    return relevant


@njit(nogil=True, cache=True)
def number_anew(ids: NDArray[np.int32], n_ids: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the distinct ids, rising, and for each id its place among them."""
    place = np.full(n_ids, -1, np.int32)
    for i in range(ids.shape[0]):
        for j in range(ids.shape[1]):
            place[ids[i, j]] = 0
    distinct = np.empty(min(n_ids, ids.size), np.int64)
    size = 0
    for number in range(n_ids):
        if place[number] == 0:
            distinct[size] = number
            place[number] = size
            size += 1
    places = np.empty(ids.shape, np.int32)
    for i in range(ids.shape[0]):
        for j in range(ids.shape[1]):
            places[i, j] = place[ids[i, j]]
    return distinct[:size].copy(), places


# -- all levels of all trees ----------------------------------------------------------------------


@dataclass
class TreeTrainer:
    """Trains the trees of a model, one after the other, each from the root to the labels."""

    model: "AttentionXML"
    config: TrainingConfig
    inner_epochs: int
    shape: Shape
    width: int  # C
    vectors: NDArray[np.float32] | None
    known: LevelDocuments
    held_out: LevelDocuments | None
    sharing: Processes | None = None  # among which the labels of the last level are split

    def __post_init__(self) -> None:
        """Begin with an empty history."""
        self.history = History()
        self.device = choose_device(self.model.device)
        facts = self.model.get_parameters()
        # More trees, or another beam, leave those that are trained as they are.
        self.facts = {name: facts[name] for name in facts if name not in ("trees", "beam")}
        self.facts["data"] = self.known.fingerprint()

    def train_tree(
        self, number: int, tree: LabelTree, progress: Progress
    ) -> ProbabilisticLabelTree:
        """Return the tree with its trained networks, on the CPU."""
        levels: list[AttentionXMLNetwork] = []
        known, held_out = self.known, self.held_out
        for level in range(1, tree.depth + 1):
            progress.say(self._announce(number, tree, level))
            here = known.at(tree, level)
            held = None if held_out is None else held_out.at(tree, level)
            sharing = self.sharing if level == tree.depth else None
            net = self._new_network(here, self.model.seed + 1000 * number + level, sharing)
            task = LevelTask(self.model, net, here, held, sharing=sharing)
            if known.above is not None:
                task.children = tree.children[level - 1]
                if self.width < tree.sizes[level - 1]:  # else a document meets all nodes anyway
                    parents = find_nodes(known.nodes, tree, level - 1)
                    task.candidates = choose_candidates(parents, known.above.nodes, self.width)
            self._begin(task, levels)
            n_left = (self.model.trees - number) * tree.depth - level + 1
            self._train(task, number, level, level < tree.depth, n_left, progress)
            task.join()
            if level < tree.depth:
                known = self._rank(net, tree, level, known)
                held_out = held_out and self._rank(net, tree, level, held_out)
            levels.append(net.cpu().requires_grad_(False))
        return ProbabilisticLabelTree(tree, levels, self.model.path_weight)

    def _begin(self, task: LevelTask, levels: list[AttentionXMLNetwork]) -> None:
        """Give a new network its first weights, those of the level above if there is one (2.5)."""
        net, is_warm = task.net, self.model.warm_start and bool(levels)
        if is_warm:
            net.start_from(levels[-1])
        if not (is_warm and self.model.inherit_bias and net.output is not None):
            net.begin_at(task.share())

    def _announce(self, number: int, tree: LabelTree, level: int) -> str:
        parts = [f"Tree {number + 1} of {self.model.trees}"] if self.model.trees > 1 else []
        parts += [f"level {level} of {tree.depth}"] if tree.depth > 1 else []
        what = "labels" if level == tree.depth else "nodes"
        return ", ".join([*parts, f"{tree.sizes[level]:,} {what}"])

    def _new_network(
        self, here: LevelDocuments, seed: int, sharing: Processes | None
    ) -> AttentionXMLNetwork:
        """Return a network with random weights."""
        gpus = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=gpus), self.device:
            torch.manual_seed(seed)
            shape = self.shape.with_nodes(here.nodes.shape[1])
            net = AttentionXMLNetwork(shape, own_rows(sharing))
        if self.vectors is not None:
            net.words.data.copy_(torch.from_numpy(self.vectors))
        return net

    def _train(
        self,
        task: LevelTask,
        number: int,
        level: int,
        is_inner: bool,
        n_left: int,
        progress: Progress,
    ) -> None:
        """Train one level of a tree; `n_left` trainings, this one included, share the time."""
        model = self.model
        config = replace(self.config, epochs=self.inner_epochs) if is_inner else self.config
        run_dir = None
        if model.run_dir is not None:
            run_dir = model.run_dir / f"tree-{number + 1}" / f"level-{level}"
        done = train(
            task,
            config,
            device=model.device,
            seed=model.seed + 1000 * number + level,
            progress=progress,
            run_dir=run_dir,
            resume=model.resume,
            checkpoint_seconds=model.checkpoint_seconds,
            fingerprint={**self.facts, "tree": number, "level": level},
            seconds=model.seconds_left(n_left),
        )
        self.history = _join(self.history, done)

    def _rank(
        self, net: AttentionXMLNetwork, tree: LabelTree, level: int, documents: LevelDocuments
    ) -> LevelDocuments:
        """Return the documents with the best nodes of this level, for the level below."""
        width = max(self.width, self.model.beam or 0)
        starts = tree.children[level - 1]
        net.settle(self.device)
        above = rank_nodes(net, documents.tokens, width, self.device, documents.above, starts)
        above = above.weighed(self.model.path_weight)
        return LevelDocuments(documents.tokens, documents.nodes, above)


def _join(first: History, then: History) -> History:
    """Return what happened in two runs, one after the other."""
    return History(
        records=[*first.records, *then.records],
        best=then.best,
        best_step=first.n_steps + then.best_step,
        n_steps=first.n_steps + then.n_steps,
        stopped_early=then.stopped_early,
        problem=first.problem or then.problem,
        seconds=first.seconds + then.seconds,
        waiting=first.waiting + then.waiting,
    )
