"""KNN: exact search among sparse rows, votes, explanations, more documents."""

from importlib.util import find_spec

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import planted_dataset, planted_texts

from longtail import KNN, Dataset, GLaS, evaluate, load_model
from longtail.errors import DataError, ModelFileError, NotFittedError, ParameterError
from longtail.models.knn.space import weigh_words
from longtail.progress import Progress
from longtail.runtime.parallel import set_threads
from longtail.runtime.rows import scale_to_unit
from longtail.runtime.store import read_folder, write_folder
from longtail.search.sparse import SparseIndex
from longtail.search.voters import count_carriers

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="glas needs torch")
SMALL_GLAS = {"dim": 16, "epochs": 10, "learning_rate": 0.01, "device": "cpu"}


class Notes(Progress):
    """Keeps what it is told."""

    def __init__(self):
        self.said = []

    def stage(self, name, total):
        pass

    def advance(self, amount):
        pass

    def say(self, message):
        self.said.append(message)


# ---------------------------------------------------------------------------------------- search


def random_rows(n, n_features, density, seed):
    rng = np.random.default_rng(seed)
    rows = sp.random(n, n_features, density, "csr", np.float32, rng)
    # Words as in texts: a few in most documents, most in few.
    rows = rows.multiply(1 / (1 + np.arange(n_features)) ** 0.3).tocsr().astype(np.float32)
    rows.sort_indices()
    return scale_to_unit(rows)


def check_search(X, Q, n):
    index = SparseIndex.of(X)
    products = (Q.astype(np.float64) @ index.vectors.T.astype(np.float64)).toarray()
    ids, found = index.search(Q, n)
    for i in range(Q.shape[0]):
        some = np.flatnonzero(products[i] > 0)
        best = np.sort(products[i][some])[::-1][:n]
        n_found = min(n, len(some), X.shape[0])
        np.testing.assert_allclose(found[i, :n_found], best, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(products[i][ids[i, :n_found]], best, rtol=1e-5, atol=1e-7)
        assert (ids[i, n_found:] == -1).all()
        assert (found[i, n_found:] == 0).all()
        assert len(set(ids[i, :n_found].tolist())) == n_found


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 60),
    n_features=st.integers(1, 30),
    density=st.floats(0, 1),
    k=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_search_finds_the_highest_products(n, n_features, density, k, seed):
    X, Q = (random_rows(m, n_features, density, seed + i) for i, m in enumerate((n, 5)))
    check_search(X, Q, k)


def rows_with_many_documents(n, seed):
    """A few words in most rows, as light as stop words are, and rare ones that decide."""
    rng = np.random.default_rng(seed)
    light = sp.random(n, 6, 0.5, "csr", np.float32, rng) * np.float32(0.01)
    rare = sp.random(n, 600, 0.01, "csr", np.float32, rng)
    return scale_to_unit(sp.csr_matrix(sp.hstack([light, rare], "csr")))


def test_search_among_many_rows_looks_only_at_rows_in_short_lists():
    X, Q = rows_with_many_documents(90_000, 0), rows_with_many_documents(20, 1)
    check_search(X, Q, 10)
    check_search(X, sp.csr_matrix(Q[:, :6] @ sp.eye(6, 606, format="csr", dtype=np.float32)), 10)


def test_a_row_that_is_there_twice_has_one_product_wherever_it_lies():
    X, Q = rows_with_many_documents(45_000, 0), rows_with_many_documents(20, 1)
    ids, products = SparseIndex.of(sp.csr_matrix(sp.vstack([X, X], "csr"))).search(Q, 20)
    assert (ids[:, 1::2] == ids[:, ::2] + 45_000).all()
    assert (products[:, 1::2] == products[:, ::2]).all()


def test_rows_that_share_only_zeros_have_nothing_in_common():
    columns = np.tile(np.arange(8, dtype=np.int32), 5)
    X = sp.csr_matrix((np.zeros(40, np.float32), columns, np.arange(0, 41, 8)), shape=(5, 9))
    X.data[3] = 1
    query = sp.csr_matrix((np.ones(8, np.float32), columns[:8], [0, 8]), shape=(1, 9))
    ids, products = SparseIndex.of(X).search(query, 5)
    assert ids[0].tolist() == [0, -1, -1, -1, -1]
    np.testing.assert_allclose(products[0], [1, 0, 0, 0, 0], rtol=1e-5)


def test_of_equal_rows_the_first_win():
    X = sp.csr_matrix(np.ones((9, 2), np.float32))
    assert SparseIndex.of(X).search(X[:1], 4)[0].tolist() == [[0, 1, 2, 3]]


def test_threads_and_batches_change_nothing():
    X, Q = random_rows(500, 80, 0.1, 0), random_rows(150, 80, 0.1, 1)
    index = SparseIndex.of(X)
    try:
        set_threads(1)
        alone = index.search(Q, 7)
        set_threads(3)
        together = index.search(Q, 7)
    finally:
        set_threads(None)
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(index.search(Q[31], 7)[1][0], alone[1][31])


# ----------------------------------------------------------------------------------------- votes


def test_votes_are_shares_of_similarity():
    X = sp.csr_matrix(np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32))
    Y = sp.csr_matrix(np.array([[1, 0], [1, 1], [0, 1]], np.float32))
    model = KNN(n_neighbours=2, temperature=0.5, idf=False, rarity=0).fit(X, Y)
    top = model.predict(sp.csr_matrix(np.array([[1, 0]], np.float32)), k=2)
    second = np.exp((0.6 - 1) / 0.5)
    assert top.labels.tolist() == [[0, 1]]
    np.testing.assert_allclose(top.scores, [[1, second / (1 + second)]], rtol=5e-3)


def test_the_best_number_and_temperature_are_chosen():
    rng = np.random.default_rng(0)
    cosines = -np.sort(-rng.random((400, 60)), axis=1).astype(np.float32)
    Y = sp.csr_matrix(np.eye(60, dtype=np.float32)[rng.integers(0, 60, 500)])
    ids = rng.integers(0, 500, (400, 60)).astype(np.int32)
    nearest = sp.csr_matrix(Y[ids[:, 0]])
    model, nothing = KNN(), sp.csr_matrix(nearest.shape)
    n, temperature, score = model._choose(ids, cosines, Y, nearest)
    assert score > 99
    assert n == 3 or temperature < 0.05  # the nearest knows it all
    assert KNN(n_neighbours=7)._choose(ids, cosines, Y, nearest).n_neighbours == 7
    assert KNN(temperature=0.3)._choose(ids, cosines, Y, nearest).temperature == 0.3
    assert model._choose(ids, cosines, Y, nothing)[:2] == (50, 0.05)


def test_rare_words_count_more():
    X = sp.csr_matrix(np.array([[1, 0.5], [1, 0], [1, 0]], np.float32))
    rare = np.log(4 / np.array([4, 2])) + 1
    np.testing.assert_allclose(weigh_words(X, True, 0.5), rare**0.5, rtol=1e-6)
    np.testing.assert_allclose(weigh_words(X.ceil(), True, 0.5), rare**1.5, rtol=1e-6)
    np.testing.assert_allclose(weigh_words(X, False, 0), [1, 1])


def test_a_document_does_not_vote_on_itself():
    """Every document differs from all others, so that only itself would know its label."""
    n = 120
    X = sp.hstack([sp.identity(n), np.ones((n, 1))]).tocsr().astype(np.float32)
    Y = sp.csr_matrix(np.eye(n, dtype=np.float32))
    notes = Notes()
    model = KNN().fit(X, Y, progress=notes)
    assert "neighbours vote, at a temperature of" in notes.said[0]
    assert evaluate(model.predict(X), Y)["P@1"] == 100


def test_counting_carriers():
    Y = sp.csr_matrix(np.array([[1, 0, 1], [1, 1, 0], [0, 0, 1]], np.float32))
    ids = np.array([[0, 1, 2], [2, -1, -1]], np.int32)
    labels = np.array([[0, 2, -1], [2, 1, 7]], np.int32)
    assert count_carriers(ids, Y, labels).tolist() == [[2, 2, 0], [1, 0, 0]]


def test_neighbours_by_number_skip_documents_without_labels():
    data = planted_dataset()
    Y = data.Y.tolil()
    Y[:40] = 0
    model = KNN(n_neighbours=6).fit(data.X, Y.tocsr())
    numbers, cosines = model.find_neighbours(data.X[50])
    assert numbers[0, 0] == 50
    assert numbers.min() >= 40
    assert cosines[0, 0] == pytest.approx(1, abs=1e-4)
    top = model.predict(data.X[50], k=3)
    counts = model.count_neighbours(data.X[50], top.labels)
    assert 1 <= counts[0, 0] <= 6


# ---------------------------------------------------------------------------------- explanations


def test_an_explanation_names_documents_and_words():
    data = planted_texts()
    model = KNN(n_neighbours=10, snippet_chars=12).fit(data)
    found = model.explain(data.texts[7])
    assert len(found.neighbours) == 5
    first = found.neighbours[0]
    assert (first.number, first.text) == (7, data.texts[7][:12])
    assert first.similarity == pytest.approx(1, abs=1e-4)
    assert first.labels == tuple(data.label_names[label] for label in data.Y[7].indices)
    assert sum(abs(term.weight) for term in found.terms) == pytest.approx(1)
    label = first.labels[0]
    of_label = model.explain(data.texts[7], label)
    assert label in of_label.neighbours[0].labels


def test_documents_speak_for_and_against_a_label_that_is_not_given():
    texts = [*(["apple tree fruit"] * 9), "engine and a tree", "engine oil"]
    labels = [*([["garden"]] * 9), ["car"], ["car"]]
    explained = KNN(n_neighbours=3).fit(texts, labels).explain("apple tree fruit oil", "car")
    weights = {term.name: term.weight for term in explained.terms}
    assert weights["apple"] < 0 < weights["oil"]
    found = explained.neighbours
    assert [each.labels for each in found] == [("car",), ("car",), ("garden",), ("garden",)]
    assert found[0].text == "engine oil"
    assert found[1].similarity < found[0].similarity < found[2].similarity


def test_explaining_before_fitting():
    with pytest.raises(NotFittedError):
        KNN().explain("a text")
    with pytest.raises(NotFittedError):
        KNN().find_neighbours(["a text"])


def test_rows_are_named_by_number_and_texts_may_be_left_out():
    rows = planted_dataset()
    near = KNN(n_neighbours=3).fit(rows).explain(rows.X[4]).neighbours[0]
    assert (near.text, near.named()) == (None, "document 4")
    notes = Notes()
    model = KNN(snippet_chars=0).fit(planted_texts(), progress=notes)
    assert model.snippets_ == []
    assert not any("Keeping" in said for said in notes.said)
    KNN(snippet_chars=5).fit(planted_texts(), progress=notes)
    assert notes.said[-1] == (
        "Keeping the first 5 characters of 300 texts to explain with "
        "(0.0 MB; snippet_chars=0 keeps none)"
    )
    KNN(snippet_chars=5).fit(["one text"], [["a"]], progress=notes)
    assert any("characters of 1 text to explain with" in said for said in notes.said)


# -------------------------------------------------------------------------------- more documents


def test_new_documents_and_labels_are_known_at_once(tmp_path):
    model = KNN(n_neighbours=1).fit(planted_texts())
    model.partial_fit(["word1 gadget gizmo", "word2 unlabelled", "word3"], [["new"], [], ["other"]])
    assert model.training_counts_.n_documents == 303
    top = model.predict(["word1 gadget"], k=1)
    assert model.numbers_[-2:].tolist() == [300, 302]
    assert model.snippets_[-2:] == ["word1 gadget gizmo", "word3"]
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert np.array_equal(again.predict(["word1 gadget"], k=1).labels, top.labels)
    assert list(again.label_names_[-2:]) == ["new", "other"]
    assert again.explain("word3").neighbours[0].text is not None


def test_there_is_nothing_to_train_further():
    notes = Notes()
    model = KNN().fit(planted_dataset())
    model.partial_fit(planted_dataset(), train=True, progress=notes)
    assert any("knn has nothing to train further" in line for line in notes.said)
    assert model.n_kept == 2 * len(planted_dataset())


# ------------------------------------------------------------------------------------ embeddings


@needs_torch
def test_a_trained_model_as_space(tmp_path):
    data, test = planted_texts(), planted_texts(seed=1)
    glas = GLaS(**SMALL_GLAS).fit(data)
    model = KNN(space=glas, n_neighbours=20).fit(data)
    top = model.predict(test)
    assert evaluate(top, test)["P@1"] > 90
    glas.save(tmp_path / "glas")
    from_folder = KNN(space=str(tmp_path / "glas"), n_neighbours=20).fit(data).predict(test)
    assert np.array_equal(from_folder.scores, top.scores)
    model.save(tmp_path / "knn")
    again = load_model(tmp_path / "knn")
    assert np.array_equal(again.predict(test).scores, top.scores)
    assert again.space == "glas"
    assert len(again.explain(test.texts[0]).neighbours) == 5
    again.partial_fit(["word1 word2"], [["new"]])
    assert again.find_neighbours(["word1 word2"])[0].max() == 300


@needs_torch
def test_a_model_to_train_as_space_chooses_by_held_out_documents(monkeypatch):
    monkeypatch.setattr(GLaS, "from_settings", classmethod(lambda cls, _: cls(**SMALL_GLAS)))
    notes = Notes()
    model = KNN(space="glas").fit(planted_dataset(), progress=notes)
    assert sum("neighbours vote" in said for said in notes.said) == 1
    assert evaluate(model.predict(planted_dataset(seed=1)), planted_dataset(seed=1))["P@1"] > 90


@needs_torch
def test_negative_values_need_a_space_of_embeddings():
    data = planted_dataset()
    negative = Dataset(Y=data.Y, label_names=data.label_names, X=-data.X)
    with pytest.raises(DataError, match="no value may be negative; X holds -1"):
        KNN().fit(negative)
    glas = GLaS(**SMALL_GLAS).fit(negative)
    assert len(KNN(space=glas).fit(negative).predict(negative)) == 300


# --------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_neighbours": 0}, "'n_neighbours' parameter of KNN must be at least 1, or none"),
        ({"temperature": 0.0}, "'temperature' parameter of KNN must be at least 0.0001"),
        ({"rarity": 9.0}, "'rarity' parameter of KNN must be from -5 to 5, or none"),
        ({"snippet_chars": -1}, "'snippet_chars' parameter of KNN must be at least 0. Got -1"),
        ({"space": "nowhere"}, "must be one of tfidf, .*folder of such a model. Got 'nowhere'"),
    ],
)
def test_parameters_out_of_range(parameters, message):
    with pytest.raises(ParameterError, match=message):
        KNN(**parameters).fit(planted_dataset())


def test_a_space_without_embeddings(tmp_path):
    from longtail import Linear

    linear = Linear().fit(planted_dataset())
    with pytest.raises(
        ParameterError, match="by this linear model, which has no embeddings; models"
    ):
        KNN(space=linear).fit(planted_dataset())
    with pytest.raises(ParameterError, match="this glas model, which is not trained or has no"):
        KNN(space=GLaS()).fit(planted_dataset())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError):
        KNN(space=str(tmp_path / "empty")).fit(planted_dataset())


@pytest.mark.parametrize(
    "name",
    ["voters.index.columns", "voters.labels.columns", "numbers", "n_neighbours", "n_features"],
)
def test_damaged_folders(name, tmp_path):
    KNN().fit(planted_dataset()).save(tmp_path / "model")
    files = read_folder(tmp_path / "model")
    if name == "n_neighbours":
        files.config["voters"]["n_neighbours"] = 0
    elif name == "n_features":
        files.config["voters.index"]["n_features"] += 1
    elif name == "numbers":
        files.arrays[name] = files.arrays[name][:-1]
    else:
        files.arrays[name] = np.full_like(files.arrays[name], 100)
    write_folder(tmp_path / "broken", files)
    with pytest.raises(ModelFileError, match="do not fit together"):
        load_model(tmp_path / "broken")
