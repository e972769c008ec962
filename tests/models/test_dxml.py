"""The equations and algorithms of the DXML paper against literal versions, and its options."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_dataset, planted_rows, planted_texts

torch = pytest.importorskip("torch")
pytest.importorskip("gensim")

from longtail import evaluate, load_model  # noqa: E402
from longtail.errors import DataError, MissingExtraError, ModelFileError, ParameterError  # noqa: E402
from longtail.models import neural  # noqa: E402
from longtail.models.attention_xml.model import AttentionXML  # noqa: E402
from longtail.models.dxml import model as dxml_model  # noqa: E402
from longtail.models.dxml import network as module  # noqa: E402
from longtail.models.dxml.label_vectors import choose_whitening  # noqa: E402
from longtail.models.dxml.model import DXML  # noqa: E402
from longtail.models.dxml.network import distance, mean_labels, new_network, open_network  # noqa: E402
from longtail.models.embedder import embed_rows  # noqa: E402
from longtail.runtime.quantized import QuantizedRows  # noqa: E402
from longtail.runtime.rows import view_rows  # noqa: E402
from longtail.search import inverted  # noqa: E402
from longtail.search.index import build_index  # noqa: E402
from longtail.training.layers import SparseBatch  # noqa: E402

SMALL = {
    "dim": 16,
    "hidden": 32,
    "walks": 20,
    "neighbours": 10,
    "learning_rate": 0.01,
    "device": "cpu",
}


def test_the_distance_is_equations_1_and_2():
    rng = np.random.default_rng(0)
    f_x, f_y = rng.normal(size=(2, 20, 7)) * 1.5

    def h(a, b):
        return 0.5 * (a - b) ** 2 if abs(a - b) <= 1 else abs(a - b) - 0.5

    expected = [
        sum(h(a, b) for a, b in zip(x, y, strict=True)) for x, y in zip(f_x, f_y, strict=True)
    ]
    np.testing.assert_allclose(distance(torch.from_numpy(f_x), torch.from_numpy(f_y)), expected)


def test_a_document_belongs_at_the_mean_of_its_labels():
    """f_y = Vy/nnz(y)."""
    rng = np.random.default_rng(0)
    V = rng.normal(size=(6, 4)).astype(np.float32)
    Y = np.array([[1, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0]])
    expected = (Y @ V) / Y.sum(axis=1, keepdims=True)
    labels, start = torch.tensor([0, 2, 5, 1]), torch.tensor([0, 3, 4])
    found = mean_labels(torch.from_numpy(V), labels, start)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def cells_of(X):
    return SparseBatch.of(view_rows(X), np.arange(X.shape[0]), X.shape[1])


@pytest.mark.parametrize("kind", ["relu", "linear", "residual"])
def test_the_network_is_figure_1(kind):
    X = sp.random(5, 9, 0.5, "csr", np.float32, random_state=0)
    net = new_network(9, 4, 4, kind, seed=0).requires_grad_(False).eval()
    net.first.mul_(50)
    if kind != "linear":  # two linear layers become one, and that is quantized
        net.first.copy_(quantized(net.first))
        net.second.weight.copy_(quantized(net.second.weight.T).T)
    rounding = 5e-3 if kind == "linear" else 1e-5
    first = X.toarray() @ net.first.numpy() + net.bias.numpy()
    x = first if kind == "linear" else np.maximum(first, 0)
    x = x @ net.second.weight.numpy().T + net.second.bias.numpy()
    if kind == "residual":
        x += first
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(net(cells_of(X)), x, rtol=1e-4, atol=1e-6)
    embedder = net.export(np.ones(9, np.float32))
    found = embed_rows(embedder, view_rows(X), False)
    np.testing.assert_allclose(found, x, rtol=1e-4, atol=rounding)
    again = open_network(embedder).requires_grad_(False).eval()
    np.testing.assert_allclose(again(cells_of(X)), x, rtol=1e-4, atol=rounding)


def quantized(weight):
    rows = QuantizedRows.of(weight.numpy())
    return torch.from_numpy(rows.take(slice(None), weight.shape[1]))


def test_dropout_comes_after_the_last_linear_layer():
    X = sp.csr_matrix(np.ones((400, 3), np.float32))
    net = new_network(3, 8, 10, "relu", seed=0).requires_grad_(False)
    dropped = net.train()(cells_of(X), 0.5) == 0
    assert 0.4 < dropped.float().mean() < 0.6
    assert not (net.eval()(cells_of(X), 0.5) == 0).any()


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("summed", [True, False])
def test_the_loss_of_a_batch_is_equation_3(unit, summed):
    """Label vectors that are not of length 1 lead beyond the quadratic branch of equation 2."""
    X, Y = planted_rows(30)
    V = 3 * np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    model = DXML(**SMALL, keep=1.0, dropout=0.0, unit_labels=unit, sum_losses=summed)
    net = new_network(X.shape[1], 6, 5, "relu", seed=0)
    kept = np.arange(3, 30)
    task = module.DXMLTask(model, net, X, Y, V, kept, np.arange(3))
    rows = np.array([4, 0, 9])
    loss = task.loss(task.batch(rows, np.random.default_rng(0)))
    f_x = net(cells_of(X[kept[rows]])).detach().numpy()
    f_y = np.asarray((Y[kept[rows]] @ V) / Y[kept[rows]].sum(axis=1))
    if unit:
        f_y /= np.linalg.norm(f_y, axis=1, keepdims=True)
    gaps = np.abs(f_x - f_y)
    assert unit or (gaps > 1).mean() > 0.2
    distances = np.where(gaps <= 1, gaps**2 / 2, gaps - 0.5).sum(axis=1)
    expected = distances.sum() if summed else distances.mean()
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-5)


def label_vectors(model):
    return model.label_vectors_.take(slice(None), model.dim)


def test_the_papers_label_vectors_keep_the_length_that_the_walks_gave_them():
    settings = {**SMALL, "epochs": 1, "whiten": 0.0}
    as_found, unit = (
        label_vectors(DXML(**settings, unit_labels=unit).fit(planted_dataset()))
        for unit in (False, True)
    )
    lengths = np.linalg.norm(as_found, axis=1, keepdims=True)
    assert lengths.std() > 0.01
    np.testing.assert_allclose(unit, as_found / lengths, atol=5e-3)
    assert DXML.presets["paper"]["unit_labels"] is False


def test_the_papers_walks_keep_frequent_labels():
    paper = DXML.from_settings({"preset": "paper"})
    assert (paper.hierarchical, paper.subsample) == (True, 0.0)
    settings = {**SMALL, "epochs": 1}
    whole, thinned = (
        label_vectors(DXML(**settings, subsample=share).fit(planted_dataset()))
        for share in (0.0, 0.01)
    )
    assert not np.array_equal(whole, thinned)


def test_prediction_is_algorithm_2():
    """Each neighbour's labels, weighted by exp(cosine/temperature), against a literal version."""
    train, test = planted_dataset(), planted_dataset(n=20, seed=1)
    for temperature in (0.0, 0.2):
        model = DXML(**SMALL, temperature=temperature).fit(train)
        places = embed_rows(model.embedder_, view_rows(test.X), True)
        cosines = places @ model.voters_.index.vectors.T
        top = model.predict(test, k=12)
        for i in range(20):
            near = np.argsort(-cosines[i], kind="stable")[:10]
            votes = np.exp(cosines[i, near] / temperature) if temperature else np.ones(10)
            shares = votes @ model.voters_.Y[near].toarray() / votes.sum()
            np.testing.assert_allclose(top.scores[i], shares[top.labels[i]], rtol=1e-4, atol=1e-6)
            assert (np.diff(shares[top.labels[i]]) <= 1e-6).all()


def test_labels_that_no_neighbour_carries_follow_by_frequency():
    train = planted_dataset()
    model = DXML(**{**SMALL, "neighbours": 1}).fit(train)
    top = model.predict(planted_dataset(n=5, seed=1), k=12)
    counts = model.training_counts_.label_counts
    for labels, scores in zip(top.labels, top.scores, strict=True):
        assert sorted(labels.tolist()) == list(range(12))
        assert (np.diff(counts[labels[scores == 0]]) <= 0).all()


@pytest.mark.parametrize(
    "parameters",
    [
        {"weighted": True},
        {"linear": True},
        {"residual": False},
        {"whiten": 0.0},
        {"whiten": 0.0, "unit_labels": False},
        {"hierarchical": True},
        {"label_vectors": "random"},
        {"label_vectors": "orthogonal"},
        {"sum_losses": True, "learning_rate": 0.002},
        {"keep": 1.0},
        {"dropout": 0.0},
        {"temperature": 0.0},
        {"idf": False, "normalize": False},
        {"neighbours": None},
        {"neighbours": None, "valid": 0.2, "patience": 3},
        {"clusters": 1},
        {"clusters": 6},
        {"clusters": 6, "searched": 1},
        {"optimizer": "sgd", "learning_rate": 1.0, "epochs": 30},
    ],
    ids=str,
)
def test_every_variant_learns(parameters):
    test = planted_dataset(seed=1)
    model = DXML(**{**SMALL, **parameters}).fit(planted_dataset())
    assert evaluate(model.predict(test), test)["P@1"] > 90


def test_linear_has_one_layer_and_the_network_two():
    assert len(DXML(**SMALL, linear=True).fit(planted_dataset()).embedder_.second_bias) == 0
    assert len(DXML(**SMALL).fit(planted_dataset()).embedder_.second.codes) == 16
    model = DXML(**SMALL, residual=False).fit(planted_dataset())
    assert len(model.embedder_.second.codes) == 32
    assert not model.embedder_.residual[0]


def test_clusters_are_made_and_searched_as_told():
    model = DXML(**SMALL, clusters=6, searched=2).fit(planted_dataset())
    assert model.voters_.index.n_lists == 6
    assert model.voters_.index.n_probes == 2
    assert DXML(**SMALL).fit(planted_dataset()).voters_.index.exact
    assert 0 < model.voters_.index.recall < 1
    enough = DXML(**SMALL, clusters=6).fit(planted_dataset())
    assert enough.voters_.index.recall >= 0.95


def test_k_means_sees_all_documents_where_clusters_are_asked_for(monkeypatch):
    """Line 5 of algorithm 1 divides all documents; an index for speed learns from a sample."""
    learned_from = []
    sum_by_list = inverted.sum_by_list
    monkeypatch.setattr(
        inverted,
        "sum_by_list",
        lambda sample, *rest: learned_from.append(len(sample)) or sum_by_list(sample, *rest),
    )
    DXML(**SMALL, clusters=3).fit(planted_dataset())
    assert set(learned_from) == {300}


def test_the_number_of_neighbours_is_chosen_in_the_clusters_that_will_be_searched(monkeypatch):
    calls = []
    divide = dxml_model.cluster

    def noting(*args, **settings):
        calls.append((settings["clusters"], settings["searched"]))
        return divide(*args, **settings)

    monkeypatch.setattr(dxml_model, "cluster", noting)
    DXML(**{**SMALL, "neighbours": None}, clusters=5, searched=2).fit(planted_dataset())
    assert calls == [(5, 2), (5, 2)]


def test_many_documents_are_clustered_and_few_of_them_looked_at(monkeypatch):
    monkeypatch.setattr("longtail.search.index.LARGEST_EXACT", 1000)
    monkeypatch.setattr(dxml_model, "MOST_SEARCHED", 60)
    model = DXML(**SMALL).fit(planted_dataset())
    assert model.voters_.index.n_lists > 20
    assert 1 <= model.voters_.index.n_probes <= 60 * model.voters_.index.n_lists // 300
    test = planted_dataset(seed=1)
    assert evaluate(model.predict(test), test)["P@1"] > 85


def test_the_number_of_neighbours_is_chosen_by_held_out_documents():
    """With labels at random, one neighbour knows nothing, and many know what is frequent."""
    rng = np.random.default_rng(0)
    X = sp.csr_matrix((rng.random((1000, 20)) < 0.3).astype(np.float32))
    Y = sp.csr_matrix((rng.random((1000, 8)) < np.linspace(0.1, 0.6, 8)).astype(np.float32))
    settings = {**SMALL, "neighbours": None, "temperature": 0.0}
    assert DXML(**settings).fit(X, Y).voters_.n_neighbours >= 20
    assert DXML(**{**settings, "neighbours": 4}).fit(X, Y).voters_.n_neighbours == 4


def test_held_out_documents_choose_the_weights_and_vote_afterwards():
    model = DXML(**{**SMALL, "epochs": 4}, valid=0.25).fit(planted_dataset())
    records = [record["nDCG@5"] for record in model.history_.records if "nDCG@5" in record]
    assert len(records) == 4
    assert model.history_.best["nDCG@5"] == max(records)
    assert model.history_.best["n_documents"] == 75
    assert len(model.voters_.index) == 300


def test_sgd_is_the_papers():
    task = module.DXMLTask(
        DXML(optimizer="sgd", momentum=0.8, weight_decay=0.1),
        new_network(5, 4, 3, "relu", 0),
        *planted_rows(4),
        np.ones((12, 3), np.float32),
        np.arange(4),
        np.arange(0),
    )
    (sgd,) = task.optimizers(0.5)
    assert isinstance(sgd, torch.optim.SGD)
    group = sgd.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.5, 0.8, 0.1)


def test_a_hierarchy_takes_the_place_of_co_occurrence(tmp_path):
    """Labels that never occur together are near each other if they have one parent."""
    train = planted_dataset()
    lines = [f"{'even' if label % 2 == 0 else 'odd'}\t{label}\n" for label in range(12)]
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(lines))
    model = DXML(**SMALL, hierarchy=str(path), whiten=0.0).fit(train)
    V = label_vectors(model)
    assert V.shape == (12, 16)
    cosines = V @ V.T
    assert cosines[0, 2::2].mean() > cosines[0, 1::2].mean() + 0.1
    test = planted_dataset(seed=1)
    model = DXML(**SMALL, hierarchy=str(path)).fit(train)
    assert evaluate(model.predict(test), test)["P@1"] > 90


def test_siblings_of_a_planted_tree_are_nearer_than_others(tmp_path):
    """With the defaults a given hierarchy shows in the vectors: any sibling is nearer."""
    train = planted_dataset()
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"parent {label % 3}\t{label}\n" for label in range(12)))
    V = label_vectors(DXML(**SMALL, hierarchy=str(path)).fit(train))
    cosines = V @ V.T
    siblings = np.arange(12)[:, None] % 3 == np.arange(12) % 3
    np.fill_diagonal(cosines, np.nan)
    assert np.nanmin(cosines[siblings]) > np.nanmax(cosines[~siblings]) + 0.1


def test_a_hierarchy_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="there is no such hierarchy file"):
        DXML(hierarchy=str(tmp_path / "nope")).fit(planted_dataset())


# -- incremental learning ---------------------------------------------------------------------


def new_label_documents(n=40, seed=5):
    """Return rows in which word 55, among those of a planted label, names a thirteenth label."""
    X, Y = planted_rows(n, seed=seed)
    X, Y = X.tolil(), Y.tolil()
    X[:, 36:] = 0
    X[:, 55] = 3
    new = sp.csr_matrix(np.ones((n, 1), np.float32))
    return X.tocsr(), sp.hstack([Y.tocsr(), new]).tocsr()


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("clusters", [None, 5])
def test_new_documents_and_labels_are_known_at_once(train, clusters):
    model = DXML(**SMALL, clusters=clusters).fit(planted_dataset())
    X, Y = new_label_documents()
    before = model.embedder_.weight.codes
    assert model.partial_fit(X, Y, train=train) is model
    assert list(model.label_names_) == [str(i) for i in range(13)]
    assert model.training_counts_.n_documents == 340
    assert model.training_counts_.label_counts[12] == 40
    assert len(model.voters_.index) == 340
    assert label_vectors(model).shape == (13, 16)
    assert np.array_equal(before, model.embedder_.weight.codes) is not train
    more, _ = new_label_documents(seed=6)
    found = (model.predict(more, k=5).labels == 12).any(axis=1).mean()
    assert found > (0.8 if train else 0.5)
    test = planted_dataset(seed=1)
    assert evaluate(model.predict(test), test)["P@1"] > 90


@pytest.mark.parametrize("train", [False, True])
def test_an_updated_model_is_saved_and_updated_again(train, tmp_path):
    model = DXML(**SMALL, clusters=5).fit(planted_dataset())
    model.partial_fit(*new_label_documents(), train=train)
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    test = planted_dataset(seed=1)
    assert np.array_equal(loaded.predict(test).scores, model.predict(test).scores)
    model.partial_fit(*new_label_documents(seed=7), train=train)
    loaded.partial_fit(*new_label_documents(seed=7), train=train)
    assert np.array_equal(loaded.predict(test).scores, model.predict(test).scores)


def test_texts_and_names_are_added_too():
    model = DXML(**SMALL).fit(planted_texts())
    model.partial_fit(["word1 word2 word36", "word4"], [["label 0", "mead"], ["label 1"]])
    assert list(model.label_names_)[-1] == "mead"
    assert "mead" in {
        label["label"] for label in model.predict(["word1 word2 word36"]).to_list()[0]
    }


def test_labels_that_no_document_carries_are_not_added():
    model = DXML(**SMALL).fit(planted_dataset())
    X, Y = new_label_documents(10)
    more = sp.hstack([Y, sp.csr_matrix((10, 4), dtype=np.float32)]).tocsr()
    model.partial_fit(X, more)
    assert len(model.label_names_) == 13


def test_numbers_are_not_taken_for_new_names():
    model = DXML(**SMALL).fit(planted_texts())
    with pytest.raises(DataError) as caught:
        model.partial_fit(["word1"], [[3]])
    assert str(caught.value) == (
        "the labels of the new documents are numbers, 0 to 3, but those of the model have names, "
        "such as 'label 0'; give the new ones names as well"
    )
    assert len(model.label_names_) == 12


class Said:
    """A Progress that keeps what is said."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    def stage(self, name, total):
        pass

    def advance(self, amount):
        pass

    def note(self, text):
        pass


def test_documents_without_labels_or_features_are_left_out():
    model = DXML(**SMALL).fit(planted_dataset())
    X, Y = new_label_documents(10)
    X, Y = X.tolil(), Y.tolil()
    X[0] = 0
    Y[1] = 0
    said = Said()
    model.partial_fit(X.tocsr(), Y.tocsr(), progress=said)
    assert said.lines == [
        "Note: 2 of 10 documents were left out, as they have no label or no feature that the "
        "model knows"
    ]
    assert model.added_.tolist() == list(range(2, 10))
    assert len(model.voters_.index) == 308
    assert (model.n_kept, model.training_counts_.n_documents) == (308, 310)
    assert model.training_counts_.label_counts[12] == 8


def test_a_new_label_that_no_document_can_vote_for_is_said():
    model = DXML(**SMALL).fit(planted_texts())
    said = Said()
    texts = ["word1 word2", "nowhere", "unheard"]
    model.partial_fit(texts, [["label 0"], ["mead"], ["cider"]], progress=said)
    assert said.lines[1] == (
        "Note: 2 new labels (cider, mead) cannot be predicted and were not added: only documents "
        "that were left out carry them"
    )
    assert len(model.label_names_) == 12
    with pytest.raises(DataError) as caught:
        model.partial_fit(texts[1:], [["mead"], ["label 1"]])
    assert str(caught.value) == (
        "of 2 documents, none has both a label and a feature that the model knows; "
        "there is nothing to add"
    )


def test_a_label_known_by_name_only_is_placed_as_a_new_one():
    X, Y = planted_rows(300)
    with_name = sp.hstack([Y, sp.csr_matrix((300, 1), dtype=np.float32)]).tocsr()
    model = DXML(**SMALL).fit(X, with_name)
    before = label_vectors(model)
    more, more_Y = new_label_documents()
    model.partial_fit(more, more_Y)
    assert np.allclose(label_vectors(model)[:12], before[:12], rtol=1e-5)
    beside = np.asarray(more_Y[:, 12].T @ more_Y[:, :12].toarray()).ravel()
    mean = beside @ before[:12]
    mean /= np.linalg.norm(mean)
    assert label_vectors(model)[12] @ mean > before[12] @ mean + 0.2


def test_an_index_of_clusters_takes_in_more():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(300, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = build_index(vectors[:200], method="approximate", n_lists=10)
    index.n_probes = index.n_lists
    more = index.extend(vectors[200:])
    assert len(more) == 300
    assert more.n_lists == index.n_lists
    ids, scores = more.search(vectors, 3)
    assert np.array_equal(ids[:, 0], np.arange(300))
    exact = build_index(vectors, method="exact").search(vectors, 3)
    assert np.array_equal(ids, exact[0])
    assert np.array_equal(scores, exact[1])


def test_what_cannot_be_updated(monkeypatch):
    X, Y = planted_rows()
    monkeypatch.setattr(AttentionXML, "can_update", False)
    with pytest.raises(ParameterError) as caught:
        AttentionXML().partial_fit(X, Y)
    assert str(caught.value).startswith("attention-xml cannot be updated; models that can: ")
    assert "dxml" in str(caught.value)
    model = DXML(**SMALL).fit(X, Y)
    with pytest.raises(DataError, match="the rows have 7 features, but the model was trained on"):
        model.partial_fit(sp.csr_matrix((2, 7), dtype=np.float32), np.ones((2, 1)))
    with pytest.raises(DataError, match="trained on feature rows with 56 columns and cannot read"):
        model.partial_fit(["a text"], [["0"]])
    with pytest.raises(DataError, match="of 300 documents, none carries a label"):
        model.partial_fit(X, sp.csr_matrix(Y.shape, dtype=np.float32))
    with pytest.raises(Exception, match="has not been trained yet; call fit first"):
        DXML(**SMALL).partial_fit(X, Y)


def test_a_failed_update_leaves_the_model_as_it_was(monkeypatch):
    model = DXML(**SMALL).fit(planted_dataset())
    test = planted_dataset(seed=1)
    before = model.predict(test)

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(DXML, "_cluster", fail)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(*new_label_documents(), train=True)
    after = model.predict(test)
    assert np.array_equal(before.scores, after.scores)
    assert len(model.label_names_) == 12


# -- parameters and packages ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "range_text"),
    [
        ("dim", 0, "at least 1"),
        ("walks", 0, "from 1 to 1000000, or none"),
        ("walk_length", 1, "from 2 to 10000"),
        ("subsample", 1.0, "from 0 to below 1"),
        ("whiten", 1.5, "from 0 to 1, or none"),
        ("neighbours", 0, "at least 1, or none"),
        ("temperature", -0.1, "at least 0"),
        ("clusters", 0, "at least 1, or none"),
        ("optimizer", "adagrad", "'adam' or 'sgd'"),
        ("momentum", 1.0, "from 0 to below 1"),
        ("learning_rate", 0.0, "above 0"),
        ("keep", 0.0, "above 0 and at most 1"),
        ("valid", 1.0, "from 0 to below 1"),
        ("device", "tpu", "'auto' or 'cpu' or 'cuda'"),
    ],
)
def test_parameters_out_of_range(name, value, range_text):
    with pytest.raises(ParameterError) as caught:
        DXML(**{name: value}).fit(planted_dataset())
    assert str(caught.value) == (
        f"The '{name}' parameter of DXML must be {range_text}. Got {value!r} instead."
    )


def test_training_without_torch_names_the_command(monkeypatch):
    monkeypatch.setattr(neural, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"DXML needs torch, .* pip install '.\[deep\]'"):
        DXML().fit(planted_dataset())


def test_memory_is_planned():
    model = DXML(dim=10, hidden=20, residual=False)
    X, Y = planted_rows()
    adam, sgd = (
        model.with_parameters(optimizer=optimizer)._train_needs(X, "cpu", held=0).ram
        for optimizer in ("adam", "sgd")
    )
    assert adam["parameters"] == 4 * (56 * 20 + 20 * 10)
    assert adam["optimizer"] == 2 * adam["parameters"] + 4 * 56
    assert sgd["gradients"] >= adam["gradients"]
    graph, *_ = model.needs_of(X, Y, "cpu")
    assert graph.ram["label graph"] > 24 * ((Y.T @ Y).nnz - 12)
    drawn = model.with_parameters(label_vectors="random").needs_of(X, Y, "cpu")
    assert not any("label graph" in stage.ram for stage in drawn)
    *_, searched = model.with_parameters(clusters=4).needs_of(X, Y, "cpu")
    assert searched.ram["documents"] == 15 * X.shape[0] * 10


def test_a_damaged_model_is_refused(tmp_path):
    model = DXML(**{**SMALL, "epochs": 1}).fit(planted_dataset())
    files = model.to_files()
    files.arrays["rows.columns"] = np.full_like(files.arrays["rows.columns"], 100)
    with pytest.raises(ModelFileError, match=r"rows\.columns must hold whole numbers up to 55"):
        DXML.from_files(files, tmp_path)


def test_a_trained_model_predicts_without_torch_and_gensim(tmp_path):
    model = DXML(**SMALL).fit(planted_dataset())
    model.save(tmp_path / "model")
    code = """
import sys
sys.modules["torch"] = sys.modules["gensim"] = None
import longtail, numpy, scipy.sparse
model = longtail.load_model(sys.argv[1])
X = scipy.sparse.csr_matrix(numpy.eye(56, dtype=numpy.float32))
model.partial_fit(X[:3], [["0"], ["1"], ["mead"]])
print(model.predict(X, k=1).labels.ravel().tolist())
"""
    answer = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model")],
        capture_output=True,
        text=True,
        check=True,
    )
    X = sp.csr_matrix(np.eye(56, dtype=np.float32))
    model.partial_fit(X[:3], [["0"], ["1"], ["mead"]])
    assert answer.stdout.strip() == str(model.predict(X, k=1).labels.ravel().tolist())


def test_the_more_labels_documents_carry_the_less_of_the_graph_is_left():
    share = [1 - choose_whitening(sp.csr_matrix(np.ones((4, n)))) for n in (1, 5, 10, 11)]
    assert share == pytest.approx([0.25, 0.05, 0.025, 0.0])
