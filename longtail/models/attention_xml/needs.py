"""What training AttentionXML takes: texts as tokens, and the largest level of a tree."""

from typing import TYPE_CHECKING, NamedTuple

from longtail.runtime.memory import Stage, train_stage

if TYPE_CHECKING:
    from longtail.models.attention_xml.model import AttentionXML
    from longtail.models.attention_xml.network import Shape

KEPT_STATES = {"cpu": 20, "cuda": 10}  # numbers for each of a token's outputs, with gradients
BYTES_A_WORD = 250  # of the vocabulary
FEW_FOLLOWED = 16  # nodes of a level, where the data that say how many are not there
BATCHES = 6  # that are in memory at the same time, most of them prepared ahead


class LevelSize(NamedTuple):
    """What a memory plan needs to know of a label tree: labels, nodes of its first level, depth."""

    n_labels: int
    first: int
    depth: int


def reading_bytes(n_tokens: int, n_words: int, *, in_files: bool) -> dict[str, int]:
    """Return what texts as tokens take, with their vocabulary."""
    return {"texts as tokens": 12 * n_tokens * (not in_files) + BYTES_A_WORD * n_words}


def level_stage(
    model: "AttentionXML",
    shape: "Shape",
    tree: LevelSize,
    length: int,
    device_type: str,
    batch_size: int,
    shards: int = 1,
) -> Stage:
    """Return what it takes to train the largest level, its labels split into so many shards."""
    from longtail.models.attention_xml.network import count_per_piece

    width = 2 * shape.hidden
    cells = batch_size * length
    between = 4 * width * (shape.word_dim + width) + shape.pooling * width * shape.head[0]
    vectors = 4 * shape.n_words * shape.word_dim
    parameters = vectors + 4 * (between + -(-tree.n_labels // shards) * width)
    n_words = min(cells, shape.n_words) if model.train_vectors else 0
    first = tree.first
    piece = min(first, count_per_piece(device_type, batch_size, length, shape))
    per_label = (1 + model.direct) * length + 3 * sum(shape.head)
    scored = batch_size * (2 * first + piece * per_label) + first * width
    if tree.depth > 1:
        followed = getattr(model, "followed_", None) or model.candidates or FEW_FOLLOWED
        tried = min(followed * model.branching, tree.n_labels)
        scored = max(scored, batch_size * tried * (4 * width + per_label))
    states = KEPT_STATES[device_type] + shape.pooling - 1
    return train_stage(
        device_type,
        parameters=parameters,
        gradients=4 * (n_words * shape.word_dim + between + first * width),
        **model.remembered(parameters - 4 * between, 4 * between, device_type),
        activations=4 * (cells * (3 * shape.word_dim + states * width) + scored)
        + BATCHES * 12 * cells,
        averages=parameters if model.averaging else 0,
        best=parameters if model.valid else 0,
        held=vectors if model.pretrain or model.vectors is not None else 0,
    )
