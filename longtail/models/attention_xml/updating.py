"""AttentionXML with new labels: a row of attention for each, learned with all else left as it is.

A label's score depends on the words and on its own row alone (`network.py`). So new labels learn
their rows from the documents that brought them, and no other label's score changes. In a tree, a
new label goes below the node that its documents are led to. Documents of before that were kept are
among those that it learns from, and scores are learned as if labels were as frequent as they are
among all documents, of before and of now, so that new labels do not come before others.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.labels.tree import LabelTree
from longtail.models.attention_xml.loss import bce
from longtail.models.attention_xml.network import (
    LABEL_SPREAD,
    AttentionXMLNetwork,
    Encoded,
    from_arrays,
    piece_size,
    round_tables,
    to_arrays,
)
from longtail.models.attention_xml.search import (
    Beam,
    ProbabilisticLabelTree,
    place,
    rank_nodes,
    read_documents,
)
from longtail.progress import Progress
from longtail.text.tokens import TokenRows

Numbers = NDArray[np.int64]
Floats = NDArray[np.float32]

ENOUGH = 50  # documents of a new label that it learns from, unless all are asked for
BATCH = 32  # documents of a step
LEAST_STEPS, PASSES = 200, 4
NEW_RATE, KNOWN_RATE = 0.06, 0.0003  # learning rates, as shares of how far rows are apart
SMALLEST_SHARE = 1e-12  # of a label that no document carries
KEPT_NUMBERS = 1 << 28  # that documents, once read, may take in memory
LED = 5  # nodes that a document is led to, each a vote for where its new labels belong


class Update(NamedTuple):
    """What an update brings: documents, what they carry, and which labels are to learn.

    Attributes:
        tokens: the words of the documents, some of before and new ones.
        Y: (n, n_labels) their labels, new ones behind those that the model has.
        new: labels that no document carried before, nor need carry now; rising.
        refined: other labels that learn, too; rising.
        shares: (n_labels,) of all documents, those of before counted, that carry each label.
    """

    tokens: TokenRows
    Y: sp.csr_matrix
    new: Numbers
    refined: Numbers
    shares: NDArray[np.float64]

    def find_surplus(self, labels: Numbers) -> Floats:
        """Return the logarithm of how many times too often these documents carry each label."""
        met = np.bincount(self.Y.indices, minlength=self.Y.shape[1])[labels]
        times = met / self.Y.shape[0] / np.maximum(self.shares[labels], SMALLEST_SHARE)
        surplus: NDArray[np.float64] = np.log(np.maximum(times, 1))
        return surplus.astype(np.float32)


def choose_documents(Y: sp.csr_matrix, new: Numbers, rng: np.random.Generator) -> Numbers:
    """Return up to 50 documents of each new label; rising."""
    by_label = sp.csr_matrix(Y[:, new].T)
    chosen = [
        rng.permutation(by_label.indices[begin:end])[:ENOUGH]
        for begin, end in zip(by_label.indptr[:-1], by_label.indptr[1:], strict=True)
    ]
    return np.unique(np.concatenate([*chosen, np.empty(0, np.int64)])).astype(np.int64)


def update_tree(
    plt: ProbabilisticLabelTree,
    update: Update,
    device: torch.device,
    seed: int,
    progress: Progress,
) -> ProbabilisticLabelTree:
    """Return the tree with the new labels; the one given stays as it is."""
    for net in plt.levels:
        place(net, device)
    net, n_known = plt.levels[-1], plt.tree.n_labels
    nodes = np.empty(n_known, np.int64)
    nodes[plt.tree.leaves] = np.arange(n_known)
    asked = np.concatenate([update.new, update.refined])
    table = net.labels.detach().cpu().numpy().copy()
    begin = table.mean(axis=0, keepdims=True).repeat(len(update.new), axis=0)
    begin = np.concatenate([begin, table[nodes[update.refined]]])
    reader = _Reader(net, update.tokens, device)
    wanted = _Wanted(update.Y[:, asked], update.find_surplus(asked))
    rows = learn_rows(reader, begin, wanted, len(update.new), seed, progress)
    is_known = asked < n_known
    table[nodes[asked[is_known]]] = rows[is_known]
    tree, order = place_leaves(plt.tree, update.new, _find_parents(plt, update, device))
    arrays = to_arrays(net) | {"labels": np.concatenate([table, rows[~is_known]])[order]}
    grown = from_arrays(net.shape.with_nodes(tree.n_labels), arrays)
    round_tables(grown)
    return ProbabilisticLabelTree(tree, [*plt.levels[:-1], grown], plt.path_weight)


def place_leaves(tree: LabelTree, labels: Numbers, parents: Numbers) -> tuple[LabelTree, Numbers]:
    """Return the tree with each of these labels below its parent.

    Labels may be in the tree already, without documents that could say where they belong. A node
    keeps one of them if it would have none. The order says which leaf of the tree comes where; the
    labels that it did not have are counted behind those.
    """
    before = tree.parents(tree.depth).astype(np.int64)
    places, is_known = np.argsort(tree.leaves), labels < tree.n_labels
    owners = np.concatenate([before, parents[~is_known]])
    owners[places[labels[is_known]]] = parents[is_known]
    while len(empty := np.setdiff1d(before, owners)):
        owners[tree.children[-1][empty]] = empty
    order = np.argsort(owners, kind="stable")
    counts = np.bincount(owners, minlength=tree.sizes[-2])
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    leaves = np.concatenate([tree.leaves, labels[~is_known].astype(np.int32)])[order]
    return LabelTree([*tree.children[:-1], starts], leaves), order


def _find_parents(plt: ProbabilisticLabelTree, update: Update, device: torch.device) -> Numbers:
    """Return, for each new label, the node above the labels to which its documents are led most."""
    if plt.tree.depth == 1 or not len(update.new):
        return np.zeros(len(update.new), np.int64)
    beam: Beam | None = None
    for net, children in zip(plt.levels[:-1], plt.tree.children, strict=False):
        beam = beam and beam.weighed(plt.path_weight)
        beam = rank_nodes(net, update.tokens, LED, device, beam, children)
    if beam is None:
        raise ValueError("a tree without levels")
    documents, places = np.nonzero(beam.nodes >= 0)
    votes = np.exp(beam.logs[documents, places])
    shape = (update.tokens.n_documents, plt.tree.sizes[-2])
    led = sp.csr_matrix((votes, (documents, beam.nodes[documents, places])), shape=shape)
    totals = sp.csr_matrix(update.Y[:, update.new].T) @ led
    return np.asarray(totals.argmax(axis=1)).ravel().astype(np.int64)


class _Reader:
    """Reads the documents in batches of similar length, and keeps what it has read."""

    def __init__(self, net: AttentionXMLNetwork, tokens: TokenRows, device: torch.device) -> None:
        self.net, self.tokens, self.device = net, tokens, device
        order = np.argsort(tokens.lengths, kind="stable")
        self.batches = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
        self.kept: dict[int, Encoded] = {}
        self.n_kept = 0

    @torch.no_grad()
    def read(self, number: int) -> Encoded:
        """Return the documents of a batch."""
        if number in self.kept:
            return self.kept[number]
        read = read_documents(self.net, self.tokens, self.batches[number], self.device)
        self.n_kept += read.tokens.numel() + read.values.numel()
        if self.n_kept <= KEPT_NUMBERS:
            self.kept[number] = read
        return read


class _Wanted(NamedTuple):
    """Which documents carry the labels that learn, (n, n_rows), and the labels' surplus."""

    Y: sp.csr_matrix
    surplus: Floats


def learn_rows(
    reader: _Reader, begin: Floats, wanted: _Wanted, n_new: int, seed: int, progress: Progress
) -> Floats:
    """Return the rows of labels after learning; `begin` are the first ones, of new labels first.

    Labels that were known before move far less.
    """
    fresh, known = (
        torch.from_numpy(part.copy()).to(reader.device).requires_grad_()
        for part in (begin[:n_new], begin[n_new:])
    )
    spread = max(float(reader.net.labels.std(0, correction=0).mean()), LABEL_SPREAD)
    rates = {NEW_RATE * spread: fresh, KNOWN_RATE * spread: known}
    optimizer = torch.optim.Adam([{"params": [p], "lr": rate} for rate, p in rates.items()])
    n_batches, rng = len(reader.batches), np.random.default_rng(seed)
    n_passes = max(PASSES, -(-LEAST_STEPS // n_batches))
    order = np.concatenate([rng.permutation(n_batches) for _ in range(n_passes)])
    progress.stage("learning new labels", len(order))
    for step, number in enumerate(order.tolist()):
        for rate, group in zip(rates, optimizer.param_groups, strict=True):
            group["lr"] = rate * (1 - step / len(order))
        optimizer.zero_grad()
        _add_gradients(reader, number, torch.cat([fresh, known]), wanted)
        optimizer.step()
        progress.advance(1)
    rows: Floats = torch.cat([fresh, known]).detach().cpu().numpy()
    return rows


def _add_gradients(reader: _Reader, number: int, rows: Tensor, wanted: _Wanted) -> None:
    """Add the gradients of a batch's mean loss, some labels at a time."""
    net, device, read = reader.net, reader.device, reader.read(number)
    right = torch.from_numpy(wanted.Y[reader.batches[number]].toarray()).to(device)
    surplus = torch.from_numpy(wanted.surplus).to(device)
    size = piece_size(read, net.shape)
    for first in range(0, len(rows), size):
        some = slice(first, first + size)
        scores = net.score(read, rows[some]) + surplus[some]
        loss = bce(scores, right[:, some]) / len(right)
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
