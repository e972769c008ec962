"""AttentionXML's network (section 2.4): word vectors, an encoder, label attention, a shared head.

    x_i          words (n_words, word_dim)      word vectors, given or learned
    h_i          tokens (B, T, 2·hidden)        the encoder's outputs
    w_j, α_ij    labels (L, 2·hidden), attend   label j's attention over the words (2)
    m_j          Σ_i α_ij·h_i                   what label j has seen of the document (2)
    Ŵ1, Ŵ2       layers, output                 fully connected layers, shared by all labels
    z_n          nodes                          whether a label of the document is below a node
    H, K = M     levels, branching              inner levels of the tree, children of a node
    C            candidates                     nodes of a level whose children are tried

The first fully connected layer Ŵ1 is linear and shared by all labels, and attention weights add up
to 1, so that

    m_j·Ŵ1 + b1 = Σ_i α_ij·h_i·Ŵ1 + b1 = Σ_i α_ij·(h_i·Ŵ1 + b1):

every token is multiplied by Ŵ1 once (`values`), whatever the number of labels.

With `direct`, m_j·w_j is added to the score: how well the label matches the words that it looks at.
Without it, labels differ only in how they weigh words, of which a title has few. It costs no other
product, as m_j·w_j = Σ_i α_ij·(h_i·w_j).
"""

from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.runtime.quantized import QuantizedRows
from longtail.training.bilstm import BiLSTM
from longtail.training.draws import dropout as drop
from longtail.training.kernels import has_triton, works
from longtail.training.layers import EVERY, read_once, take_rows
from longtail.training.split import draw_rows

# Numbers in the largest tensors of one piece: what a cache holds, or a small share of a GPU, whose
# pieces each cost the time to start them.
CPU_PIECE, LEAST_PIECE, LARGEST_PIECE = 1 << 21, 1 << 26, 1 << 30
GPU_SHARE = 64  # bytes of its memory for each of these numbers
ALIGN = {"cpu": 1, "cuda": 64}  # tensor cores are slow with rows of other lengths

WORD_SPREAD = 0.7  # of the first values of words, if nothing is known of them
LABEL_SPREAD = 0.04  # of the first values of labels' attention
# Of the way to the labels' log odds at which scores begin. On titles with thousands of rare labels
# learning starts epochs later from 0; on longer texts it does from the log odds themselves.
START = 0.6
NEVER = -1e4  # the match of padding: its softmax weight is 0, and 0 times this stays 0


# -- token encoders: (B, T, word_dim) → (B, T, width), behind a document's end anything -------


class Convolutions(nn.Module):
    """Convolutions of several widths side by side, as in XML-CNN."""

    WINDOWS = (3, 5, 9)

    def __init__(self, word_dim: int, hidden: int):
        super().__init__()
        self.width = 2 * hidden
        cuts = [self.width * i // len(self.WINDOWS) for i in range(len(self.WINDOWS) + 1)]
        self.windows = nn.ModuleList(
            nn.Conv1d(word_dim, last - first, window, padding=window // 2)
            for window, (first, last) in zip(self.WINDOWS, pairwise(cuts), strict=True)
        )

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Return the filters' outputs at every word."""
        words = words.masked_fill(find_padding(lengths, words)[..., None], 0)
        channels = words.transpose(1, 2)  # (B, word_dim, T)
        found = torch.cat([window(channels) for window in self.windows], 1)  # (B, width, T)
        return F.relu(found).transpose(1, 2)


ENCODERS: dict[str, type[BiLSTM] | type[Convolutions]] = {"bilstm": BiLSTM, "cnn": Convolutions}


def find_padding(lengths: Tensor, words: Tensor) -> Tensor:
    """Return (B, T): where documents have ended."""
    return torch.arange(words.shape[1], device=words.device) >= lengths[:, None]


def pool(tokens: Tensor, lengths: Tensor, n_parts: int) -> Tensor:
    """Return the largest of each unit in each of so many parts of a document, (B, parts·width).

    Parts are equally long; one without a word, in a shorter document, has zeros.
    """
    places = torch.arange(tokens.shape[1], device=tokens.device)
    part = places * n_parts // lengths[:, None]  # (B, T); padding is behind the last
    pooled = []
    for number in range(n_parts):
        outside = (part != number)[..., None]
        largest = tokens.masked_fill(outside, -torch.inf).amax(1)  # (B, width)
        pooled.append(largest.masked_fill(outside.all(1), 0))
    return torch.cat(pooled, 1)


# -- the network ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """The sizes and options that decide the layers of a network."""

    n_words: int
    word_dim: int
    encoder: str
    hidden: int
    head: tuple[int, ...]
    attention: bool
    pooling: int
    direct: bool
    n_nodes: int

    def with_nodes(self, n_nodes: int) -> "Shape":
        """Return the shape for another level of the tree."""
        return Shape(**{**asdict(self), "n_nodes": n_nodes})


class Encoded(NamedTuple):
    """A batch of documents as the encoder and the first layer return it.

    Attributes:
        tokens: (B, T, width) the encoder's outputs h_i.
        values: (B, T, N_fc) these after the first layer; (B, N_fc) without attention.
        padding: (B, T) where documents have ended; None if there is only one.
        lengths: (B,) how many words they have.
    """

    tokens: Tensor
    values: Tensor
    padding: Tensor | None
    lengths: Tensor


class AttentionXMLNetwork(nn.Module):
    """The network of one level of the tree, from its words to the scores of its nodes."""

    def __init__(self, shape: Shape, own: slice = EVERY):
        super().__init__()
        words = torch.randn(shape.n_words, shape.word_dim) * WORD_SPREAD
        self.words = read_once(nn.Parameter(words))
        self.encoder = ENCODERS[shape.encoder](shape.word_dim, shape.hidden)
        sizes = [self.encoder.width * shape.pooling, *shape.head]
        self.layers = nn.ModuleList(_linear(n_in, n_out) for n_in, n_out in pairwise(sizes))
        # A label's row is its attention; without attention its output weights and a bias.
        width = self.encoder.width if shape.attention else shape.head[-1] + 1
        self.labels = nn.Parameter(draw_rows(shape.n_nodes, width, own) * LABEL_SPREAD)
        self.shape = shape.with_nodes(len(self.labels))  # those that this process holds
        self.output = nn.Linear(shape.head[-1], 1) if shape.attention else None

    @torch.no_grad()
    def begin_at(self, share: float) -> None:
        """Let all scores begin below 0, towards the log odds of this share of relevant labels.

        They are the same for all labels: with odds of their own, they learned far more slowly.
        """
        odds = START * float(np.log(share) - np.log1p(-share))
        if self.output is None:
            self.labels[:, -1] = odds
        else:
            self.output.bias.fill_(odds)

    def settle(self, device: torch.device) -> None:
        """Get ready to predict on the device, from weights that may come from another place."""
        self.to(device).eval()
        for part in self.modules():
            if isinstance(part, nn.LSTM):
                part.flatten_parameters()

    def start_from(self, other: "AttentionXMLNetwork") -> None:
        """Section 2.5: take all weights of the level above, but for the labels'."""
        state = {name: value for name, value in other.state_dict().items() if name != "labels"}
        self.load_state_dict(state, strict=False)

    def read_words(self, places: Tensor, touched: Tensor | None = None) -> Tensor:
        """Return the vectors (B, T, word_dim) of the words; `touched` lists those of the batch."""
        table = self.words if touched is None else take_rows(self.words, touched)
        return table.index_select(0, places.flatten()).view(*places.shape, -1)

    def encode(
        self, words: Tensor, lengths: Tensor, word_dropout: float = 0.0, dropout: float = 0.0
    ) -> Encoded:
        """Return what the encoder and the first layer make of word vectors (B, T, word_dim)."""
        device = words.device.type
        low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else words.dtype
        words = drop(words, word_dropout, self.training)
        tokens = self.encoder(words, lengths)  # (B, T, width)
        padding = find_padding(lengths, words) if len(words) > 1 else None
        if self.shape.attention:
            tokens = drop(tokens, dropout, self.training).to(low)
            return Encoded(tokens, self.layers[0](tokens), padding, lengths)
        largest = pool(tokens, lengths, self.shape.pooling)  # (B, pooling·width)
        hidden = drop(largest, dropout, self.training).to(low)  # before, maxima rise
        for layer in self.layers:
            hidden = F.relu(layer(hidden))
        return Encoded(tokens, F.pad(hidden, (0, 1), value=1.0), padding, lengths)

    def match(self, read: Encoded, rows: Tensor) -> Tensor:
        """Return h_i·w_j, (B, T, C), for rows (C, ·) or (B, C, ·) of labels."""
        matches = read.tokens @ rows.to(read.tokens.dtype).transpose(-1, -2)
        if read.padding is not None:
            matches = matches.masked_fill_(read.padding[..., None], NEVER)
        return matches

    def attend(self, read: Encoded, rows: Tensor) -> Tensor:
        """Return α of equation (2), (B, T, C), for rows (C, ·) or (B, C, ·) of labels."""
        return self.match(read, rows).softmax(1)

    def score(self, read: Encoded, rows: Tensor) -> Tensor:
        """Return the scores (B, C) of labels, whose rows are (C, ·) or (B, C, ·)."""
        low = read.values.dtype
        with torch.autocast(rows.device.type, enabled=False):
            if self.output is None:
                return self._compare(read.values, rows.to(low)).float()
            if not torch.is_grad_enabled() and rows.ndim == 2 and can_fuse(read, self.shape):
                return self._score_fused(read, rows)
            matches = self.match(read, rows)
            weights = matches.softmax(1)  # α (B, T, C)
            # Labels stay the last dimension: tensor cores want it even, and T is often odd.
            hidden = (read.values.transpose(1, 2) @ weights).relu_()  # (B, N_fc, C)
            *inner, weight, bias = (parameter.to(low) for parameter in self.shared())
            for i in range(0, len(inner), 2):
                hidden = (inner[i] @ hidden + inner[i + 1][:, None]).relu_()
            scores = (weight @ hidden)[:, 0].float() + bias
            if self.shape.direct:
                scores = scores + (weights * matches).sum(1, dtype=torch.float32)
            return scores

    def _score_fused(self, read: Encoded, rows: Tensor) -> Tensor:
        """Return the same scores, in fewer passes over what lies between."""
        from longtail.models.attention_xml.kernels import attend

        n_labels, aligned = len(rows), count_aligned(len(rows), rows.device.type)
        rows = F.pad(rows, (0, 0, 0, aligned - n_labels)).to(read.tokens.dtype)
        weights, direct = attend(read.tokens @ rows.T, read.lengths)
        hidden = torch.bmm(read.values.transpose(1, 2), weights).relu_()  # (B, N_fc, C)
        weight, bias = self.shared()
        scores = (weight.to(hidden.dtype) @ hidden)[:, 0].float() + bias
        return (scores + direct if self.shape.direct else scores)[:, :n_labels]

    @staticmethod
    def _compare(hidden: Tensor, rows: Tensor) -> Tensor:
        """Return inner products (B, C) of documents (B, N_fc) and rows (C, ·) or (B, C, ·)."""
        return hidden @ rows.T if rows.ndim == 2 else (rows @ hidden[..., None])[..., 0]

    def shared(self) -> list[Tensor]:
        """Return the parameters that `score` uses beside the labels'."""
        if self.output is None:
            return []
        return [*self.layers[1:].parameters(), *self.output.parameters()]

    def score_all(self, read: Encoded) -> Tensor:
        """Return the scores (B, n_nodes) of all labels, without gradients."""
        pieces = torch.split(self.labels, piece_size(read, self.shape))
        return torch.cat([self.score(read, rows) for rows in pieces], 1)


def _linear(n_in: int, n_out: int) -> nn.Linear:
    """Return a layer before a ReLU, whose outputs begin as large as its inputs."""
    layer = nn.Linear(n_in, n_out)
    nn.init.kaiming_normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def piece_size(read: Encoded, shape: Shape) -> int:
    """Return how many labels to take at a time."""
    device = read.tokens.device.type
    return count_per_piece(device, len(read.tokens), read.tokens.shape[1], shape)


def count_per_piece(device_type: str, n_documents: int, length: int, shape: Shape) -> int:
    """Return how many labels fit into one piece with so many documents of that length."""
    per_label = n_documents
    if shape.attention:
        per_label *= (1 + shape.direct) * length + sum(shape.head)
    align = ALIGN[device_type]
    return max(1, count_numbers(device_type) // per_label // align) * align


@cache
def count_numbers(device_type: str) -> int:
    """Return how many numbers a piece may have."""
    if device_type == "cpu":
        return CPU_PIECE
    if not torch.cuda.is_available():  # a plan for a GPU elsewhere
        return LARGEST_PIECE
    memory = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return min(max(memory // GPU_SHARE, LEAST_PIECE), LARGEST_PIECE)


def count_aligned(n_nodes: int, device_type: str) -> int:
    """Return how many columns a table of so many labels should have."""
    return -(-n_nodes // ALIGN[device_type]) * ALIGN[device_type]


def can_fuse(read: Encoded, shape: Shape) -> bool:
    """Whether the kernels of `kernels.py` are made for this."""
    if not read.tokens.is_cuda or read.tokens.dtype != torch.bfloat16 or not shape.attention:
        return False
    return len(shape.head) == 1 and _are_kernels_there(read.tokens.device, shape.head[0])


@cache
def _are_kernels_there(device: torch.device, n_head: int) -> bool:
    if not has_triton(device):
        return False
    from longtail.models.attention_xml.kernels import LARGEST_HEAD

    return n_head <= LARGEST_HEAD and works(lambda: _try_kernels(device, n_head))


def _try_kernels(device: torch.device, n_head: int) -> Tensor:
    """Attend to a few words and back; return what came of it."""
    from longtail.models.attention_xml.kernels import attend, judge, turn_back

    matches = torch.ones(2, 3, 64, device=device, dtype=torch.bfloat16)
    lengths = torch.tensor([3, 1], device=device, dtype=torch.int32)
    weights, direct = attend(matches, lengths)
    hidden = matches.new_ones(2, n_head, 64)
    weight, bias = torch.ones(n_head, device=device), torch.ones(1, device=device)
    loss, errors, _ = judge(hidden, weight, bias, direct, torch.ones_like(direct), 64)
    turn_back(matches, weights, matches.clone(), errors, lengths)
    return loss + matches.sum()


# -- to and from plain arrays -----------------------------------------------------------------


def to_arrays(net: AttentionXMLNetwork) -> dict[str, NDArray[Any]]:
    """Return the weights by name."""
    return {name: value.cpu().numpy() for name, value in net.state_dict().items()}


def find_coarse(shape: Shape) -> tuple[str, ...]:
    """Return the names of the tables that one byte a number is enough for."""
    return ("words", "labels") if shape.attention else ("words",)  # or labels have a bias


@torch.no_grad()
def round_tables(net: AttentionXMLNetwork) -> None:
    """Leave of the large tables what a model folder keeps of them, int8 with a scale a row."""
    for name in find_coarse(net.shape):
        table = getattr(net, name)
        rows = QuantizedRows.of(table.detach().cpu().numpy())
        table.copy_(torch.from_numpy(rows.take(slice(None), table.shape[1])))


def find_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of a network, without making any."""
    with torch.device("meta"):
        net = AttentionXMLNetwork(shape)
    return {name: tuple(value.shape) for name, value in net.state_dict().items()}


def from_arrays(shape: Shape, arrays: dict[str, NDArray[Any]]) -> AttentionXMLNetwork:
    """Return the network with these weights."""
    with torch.device("meta"):
        net = AttentionXMLNetwork(shape)
    state = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    net.load_state_dict(state, assign=True)
    return net.eval().requires_grad_(False)


def parse_head(head: int | str) -> tuple[int, ...]:
    """Return the sizes of the fully connected layers, given as 256 or as "512,256"."""
    return tuple(int(size) for size in str(head).split(","))
