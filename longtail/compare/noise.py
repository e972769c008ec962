"""Wrong labels in training, put there on purpose: figure 3 of the Rank-AE paper on any data.

Four fifths of the training documents are spoiled at a rate r: every label is removed with the
probability r ("missing"), or it is removed and a wrong one takes its place ("invalid"; the paper
flips labels both ways). The other fifth stays clean. No method is trained on it, and what a method
reaches there may choose among settings. The documents that methods are measured on are clean, too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.compare.split import TrainTestSplit
from longtail.errors import DataError, ParameterError, suggest

KINDS = {"missing": "missing labels", "invalid": "missing and invalid labels"}
CLEAN = 0.2  # of the training documents


class Noise(NamedTuple):
    """One way to spoil labels: of which kind they are, and the share of them."""

    kind: str
    rate: float

    def __str__(self) -> str:
        """Return it as `--noise` takes it."""
        return f"{self.kind}={self.rate}"


def parse_noise(texts: Iterable[str], invalid: str | None = None) -> list[Noise]:
    """Turn "missing=0.2,0.4" and so on into noises; `invalid` holds rates of that kind alone.

    A rate of 0 adds nothing, as every method is trained without noise anyway.
    """
    found: list[Noise] = []
    for text in [*texts, *([] if invalid is None else [f"invalid={invalid}"])]:
        kind, equals, rates = (piece.strip() for piece in text.partition("="))
        if not equals or kind not in KINDS:
            raise ParameterError(
                "--noise must be missing or invalid with rates, such as missing=0.2,0.4,0.6. "
                f"Got '{text}' instead{suggest(kind, KINDS) if equals else ''}"
            )
        found += [Noise(kind, _parse_rate(rate)) for rate in rates.split(",")]
    for noise in found:
        if found.count(noise) > 1:
            raise ParameterError(f"--noise names {noise} twice")
    if found and not any(noise.rate for noise in found):
        raise ParameterError("--noise needs a rate above 0, such as missing=0.2")
    return sorted((noise for noise in found if noise.rate), key=_order)


def _parse_rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < 1:
        raise ParameterError(
            f"A rate of --noise must be from 0 to below 1, such as 0.2. Got '{text}' instead."
        )
    return rate


def _order(noise: Noise) -> tuple[int, float]:
    return list(KINDS).index(noise.kind), noise.rate


# -------------------------------------------------------------------------------------- spoiling


def keep_clean(
    split: TrainTestSplit, noises: Sequence[Noise], seeds: Iterable[int], path: Path
) -> TrainTestSplit:
    """Take the clean fifth out of the training documents; make sure that labels will be left."""
    if len(split.train) < 2:
        raise DataError(
            "1 training document cannot be divided into spoiled and clean ones", path=path
        )
    train, clean = split.train.split(CLEAN)
    for seed in seeds:
        for noise in noises:
            if noise.kind == "missing" and draw_removed(train.Y, noise.rate, seed).all():
                raise DataError(
                    f"--noise {noise} leaves no label on any of the {len(train):,} documents "
                    f"(seed {seed}); give more documents or a lower rate",
                    path=path,
                )
    if len(np.unique(train.Y.indices)) < 2 and any(each.kind == "invalid" for each in noises):
        raise DataError("--noise invalid needs at least two labels to choose from", path=path)
    return replace(split, train=train, clean=clean)


def draw_removed(Y: sp.csr_matrix, rate: float, seed: int) -> NDArray[np.bool_]:
    """Return which pairs of Y are removed; a higher rate removes those of a lower one as well."""
    removed: NDArray[np.bool_] = np.random.default_rng(seed).random(Y.nnz) < rate
    return removed


def spoil(Y: sp.csr_matrix, noise: Noise, seed: int) -> sp.csr_matrix:
    """Return Y (documents × labels) with missing labels, or with wrong ones in their place.

    A wrong label is any that some document carries but this one does not, each as likely as
    another. A document that carries nearly all labels gets as many wrong ones as there are.
    """
    Y = Y.sorted_indices()
    removed = draw_removed(Y, noise.rate, seed)
    rows = np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr))
    kept_rows, kept_labels = [rows[~removed]], [Y.indices[~removed]]
    if noise.kind == "invalid":
        rng = np.random.default_rng([seed, 1])
        known = np.unique(Y.indices)
        for row, n in zip(*np.unique(rows[removed], return_counts=True), strict=True):
            carried = np.searchsorted(known, Y.indices[Y.indptr[row] : Y.indptr[row + 1]])
            wrong = known[draw_others(carried, n, len(known), rng)]
            kept_rows.append(np.full(len(wrong), row))
            kept_labels.append(wrong)
    pairs = np.concatenate(kept_rows), np.concatenate(kept_labels)
    return sp.csr_matrix((np.ones(len(pairs[0]), np.float32), pairs), shape=Y.shape)


def draw_others(
    carried: NDArray[np.integer], n: int, n_labels: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return n different labels below `n_labels` that are not among the sorted `carried` ones."""
    n_others = n_labels - len(carried)
    places = rng.choice(n_others, min(n, n_others), replace=False)  # among the others
    n_before = np.searchsorted(carried - np.arange(len(carried)), places, side="right")
    others: NDArray[np.int64] = places + n_before
    return others


def write_spoiled(given: Path, folder: Path, Y: sp.csr_matrix) -> None:
    """Make a folder like `given`, which methods read, but with the training labels Y."""
    for file in [path for path in given.rglob("*") if path.is_file()]:
        copy = folder / file.relative_to(given)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.name == "train_Y.npz":
            sp.save_npz(copy, Y, compressed=False)
        else:
            copy.symlink_to(file.resolve())
