"""Word vectors from the words that occur near one another."""

import numpy as np
import pytest

from longtail.text.ppmi import WINDOW, build_ppmi, decompose, learn_word_vectors
from longtail.text.tokens import TokenRows


def rows_of(*documents):
    start = np.concatenate(([0], np.cumsum([len(each) for each in documents]))).astype(np.int64)
    return TokenRows(start, np.array([word for each in documents for word in each], np.int32))


def literal_ppmi(documents, n_words):
    """M of the module's docstring, pair by pair."""
    counts = np.zeros((n_words, n_words))
    for words in documents:
        for i, word in enumerate(words):
            for j, other in enumerate(words):
                counts[word, other] += i != j and abs(i - j) <= WINDOW
    shares = counts.sum(1) ** 0.75
    shares /= shares.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(counts / counts.sum(1, keepdims=True) / shares)
    return np.where(counts > 0, np.maximum(found, 0), 0)


def test_ppmi_is_counted_as_defined():
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 30, length).tolist() for length in (40, 1, 3, 25)]
    found = build_ppmi(rows_of(*documents), 32)
    np.testing.assert_allclose(found.toarray(), literal_ppmi(documents, 32), atol=1e-6)


def test_many_words_are_cut_into_tasks():
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 1000, 30).tolist() for _ in range(20)]
    found = build_ppmi(rows_of(*documents), 1000)
    np.testing.assert_allclose(found.toarray(), literal_ppmi(documents, 1000), atol=1e-5)


def test_too_many_documents_are_thinned_out(monkeypatch):
    monkeypatch.setattr("longtail.text.ppmi.MOST_TOKENS", 4)
    documents = [[0, 1], [2, 3], [0, 1], [2, 3]]
    assert build_ppmi(rows_of(*documents), 4)[2:].nnz == 0


def test_decomposition_is_the_exact_one_up_to_signs():
    rng = np.random.default_rng(1)
    ppmi = build_ppmi(rows_of(*(rng.integers(0, 50, 30).tolist() for _ in range(40))), 50)
    found = decompose(ppmi, 45, np.random.default_rng(0))
    U, S, _ = np.linalg.svd(ppmi.toarray())
    np.testing.assert_allclose(np.linalg.norm(found[:, :5], axis=0) ** 2, S[:5], rtol=1e-4)
    np.testing.assert_allclose(abs(found[:, :3]), abs(U[:, :3] * np.sqrt(S[:3])), atol=1e-3)


def test_words_near_the_same_words_are_alike():
    rng = np.random.default_rng(0)
    # Words 0 and 1 stand among 10–19, words 2 and 3 among 20–29; none of them beside each other.
    documents = [
        [word, *(10 + 10 * (word > 1) + rng.integers(0, 10, 6)).tolist()]
        for word in rng.integers(0, 4, 400).tolist()
    ]
    found = learn_word_vectors(rows_of(*documents), 30, 8, size=0.5, seed=0)
    unit = found / np.linalg.norm(found, axis=1, keepdims=True)
    assert unit[0] @ unit[1] > 0.8
    assert unit[2] @ unit[3] > 0.8
    assert abs(unit[0] @ unit[2]) < 0.2


def test_every_vector_is_as_long_and_the_same_again():
    rows = rows_of([0, 1, 2], [3], [1, 2])
    found = learn_word_vectors(rows, 6, 9, size=0.5, seed=3)
    assert found.shape == (6, 9)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 0.5 * 3, rtol=1e-5)
    np.testing.assert_array_equal(found, learn_word_vectors(rows, 6, 9, size=0.5, seed=3))


@pytest.mark.parametrize("documents", [[], [[]], [[1]]])
def test_without_any_pair_all_is_random(documents):
    found = learn_word_vectors(rows_of(*documents), 3, 4, size=1.0, seed=0)
    assert np.isfinite(found).all()
    assert len(np.unique(found, axis=0)) == 3
