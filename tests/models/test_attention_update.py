"""AttentionXML takes in new labels: their rows are learned, and nothing else changes."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_texts

torch = pytest.importorskip("torch")

from longtail import AttentionXML, Dataset, Fusion, evaluate, load_model  # noqa: E402
from longtail.labels.tree import LabelTree  # noqa: E402
from longtail.models.attention_xml import kept  # noqa: E402
from longtail.models.attention_xml import model as estimator  # noqa: E402
from longtail.models.attention_xml.updating import (  # noqa: E402
    choose_documents,
    place_leaves,
)
from longtail.text.tokens import TokenRows  # noqa: E402

SMALL = {
    "hidden": 16,
    "head": 8,
    "word_dim": 16,
    "epochs": 8,
    "batch_size": 16,
    "learning_rate": 0.02,
    "device": "cpu",
}
NEW = "the new one"


@pytest.fixture(scope="module")
def parts():
    """Documents of eleven labels, and documents that bring the twelfth."""
    data = planted_texts(300)
    carries = data.Y[:, [11]].toarray().ravel() > 0
    more = data.take(np.concatenate([np.flatnonzero(carries), np.flatnonzero(~carries)[:30]]))
    names = [*data.label_names[:11], NEW]
    old = data.take(np.flatnonzero(~carries))
    old = Dataset(Y=old.Y[:, :11], label_names=names[:11], texts=old.texts)
    return old, Dataset(Y=more.Y, label_names=names, texts=more.texts)


@pytest.fixture(scope="module")
def trained(parts):
    """The files of a model without a tree."""
    return AttentionXML(**SMALL).fit(parts[0]).to_files()


def recall_of_new(model, data):
    top, carries = model.predict(data, k=3), data.Y[:, [11]].toarray().ravel() > 0
    found = (top.labels == 11).any(axis=1)
    return found[carries].mean(), found[~carries].mean()


def check_update(model, parts):
    first, added = parts
    every = np.tile(np.arange(11, dtype=np.int32), (len(first), 1))
    before = model.score(first, every)
    model.partial_fit(added)
    assert np.array_equal(model.score(first, every), before)  # to the bit
    assert sorted(model.trees_[0].tree.leaves) == list(range(12))
    carries = added.Y[:, [11]].toarray().ravel() > 0
    scores = model.score(added, np.full((len(added), 1), 11, np.int32))[:, 0]
    assert scores[carries].mean() > 1.2 * scores[~carries].mean()


def test_a_new_label_is_found_and_the_others_score_as_before(parts, trained):
    model = AttentionXML.from_files(trained, Path())
    check_update(model, parts)
    found, wrong = recall_of_new(model, parts[1])
    assert found > 0.5
    assert wrong < found - 0.3


@pytest.mark.parametrize("more", [{"levels": 1, "branching": 4}, {"attention": False}])
def test_so_it_is_in_a_tree_and_without_attention(parts, more):
    check_update(AttentionXML(**{**SMALL, "epochs": 6}, **more).fit(parts[0]), parts)


def test_a_label_of_all_new_documents_is_not_given_to_every_document(parts, trained):
    first, added = parts
    only = added.take(np.flatnonzero(added.Y[:, [11]].toarray().ravel() > 0))
    model = AttentionXML.from_files(trained, Path())
    before = evaluate(model.predict(first), first)["P@1"]
    model.partial_fit(only)
    aligned = first.align(model.label_names_)
    assert evaluate(model.predict(first), aligned)["P@1"] > before - 10


def test_known_labels_learn_on_if_asked(parts, trained):
    model = AttentionXML.from_files(trained, Path())
    net = model.trees_[0].levels[0]
    model.partial_fit(parts[1], train=True)
    then = model.trees_[0].levels[0]
    assert 0 < (then.labels[:11] - net.labels).abs().max() < 0.2
    assert torch.equal(then.words, net.words)


def test_documents_without_new_labels_are_only_counted(parts, trained):
    first, _ = parts
    model = AttentionXML.from_files(trained, Path())
    trees = model.trees_
    model.partial_fit(first.take(np.arange(20)))
    assert model.trees_ is trees
    assert model.training_counts_.n_documents == len(first) + 20


def test_the_same_seed_learns_the_same_rows(parts, trained):
    models = [AttentionXML.from_files(trained, Path()).partial_fit(parts[1]) for _ in range(2)]
    assert torch.equal(*(each.trees_[0].levels[0].labels for each in models))


@pytest.mark.slow
def test_a_fusion_updates_it(parts, monkeypatch):
    monkeypatch.setattr(estimator, "SIZES", (4, 4))
    monkeypatch.setattr(AttentionXML, "choose_epochs", lambda self, n_documents: 1)
    first, added = parts
    model = Fusion(members="linear,attention-xml").fit(first)
    assert list(model.members_) == ["linear", "attention-xml"]
    model.partial_fit(added, train=True)
    assert [len(each.label_names_) for each in model.members_.values()] == [12, 12]
    assert recall_of_new(model, added)[0] > 0.8


def test_leaves_are_placed_below_their_parents():
    tree = LabelTree(
        [np.array([0, 2], np.int32), np.array([0, 2, 3], np.int32)], np.array([2, 0, 1])
    )
    grown, order = place_leaves(tree, np.array([3, 4]), np.array([0, 0]))
    assert grown.leaves.tolist() == [2, 0, 3, 4, 1]
    assert [starts.tolist() for starts in grown.children] == [[0, 2], [0, 4, 5]]
    assert order.tolist() == [0, 1, 3, 4, 2]


def test_labels_without_documents_leave_the_node_they_were_dealt_to():
    tree = LabelTree(
        [np.array([0, 3], np.int32), np.array([0, 2, 3, 4], np.int32)], np.array([2, 0, 1, 3])
    )
    moved, order = place_leaves(tree, np.array([0, 1, 4]), np.array([2, 0, 1]))
    assert moved.leaves.tolist() == [2, 1, 4, 0, 3]
    assert moved.children[1].tolist() == [0, 2, 3, 5]
    assert order.tolist() == [0, 2, 4, 1, 3]
    stayed, _ = place_leaves(tree, np.array([1]), np.array([0]))  # node 1 would have no child
    assert stayed.leaves.tolist() == tree.leaves.tolist()
    stayed, _ = place_leaves(tree, np.array([1, 3]), np.array([2, 0]))  # then node 2 would
    assert stayed.leaves.tolist() == tree.leaves.tolist()


def test_a_label_known_by_name_is_found_in_a_tree(parts, tmp_path):
    first, added = parts
    named = first.align(added.label_names)
    model = AttentionXML(**{**SMALL, "epochs": 6}, levels=1, branching=4).fit(named)
    model.partial_fit(added).save(tmp_path / "model")
    found, wrong = recall_of_new(load_model(tmp_path / "model"), added)
    assert found > 0.5
    assert wrong < found - 0.3


def test_some_documents_of_each_new_label_are_enough():
    Y = sp.csr_matrix(np.repeat(np.eye(3, dtype=np.float32), 80, axis=0))
    chosen = choose_documents(Y, np.array([0, 2]), np.random.default_rng(0))
    assert len(chosen) == 100
    assert not ((chosen >= 80) & (chosen < 160)).any()


def test_some_documents_are_kept_and_those_of_an_update_join_them(parts, trained, monkeypatch):
    monkeypatch.setattr(kept, "MOST_DOCUMENTS", 40)
    model = AttentionXML.from_files(trained, Path())
    assert model.kept_.Y.shape == (257, 11)
    model.partial_fit(parts[1])
    assert model.kept_.Y.shape == (40, 12)
    assert 0 < model.kept_.Y[:, [11]].sum() < 40


def test_no_more_words_are_kept_than_allowed(monkeypatch):
    monkeypatch.setattr(kept, "MOST_WORDS", 10)
    tokens = TokenRows(np.arange(0, 21, 4), np.full(20, 2, np.int32))
    some = kept.KeptDocuments.of(tokens, sp.csr_matrix(np.eye(5, dtype=np.float32)), 0)
    assert some.tokens.n_documents == some.Y.shape[0] == 2
