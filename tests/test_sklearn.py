import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.utils.estimator_checks import parametrize_with_checks

import longtail.sklearn as estimators
from longtail.data.debian import load_debian
from longtail.errors import DataError
from longtail.models.registry import model_names
from longtail.sklearn import (
    ForestClassifier,
    GLaSClassifier,
    KNNClassifier,
    LinearClassifier,
    precision_at,
)

FAILING = {
    "KNNClassifier": {
        "check_positive_only_tag_during_fit": "wants another sentence about negative features",
        "check_decision_proba_consistency": "gives negative features, whatever the tags say",
    },
}


@parametrize_with_checks(
    [
        LinearClassifier(),
        KNNClassifier(),
        ForestClassifier(n_trees=10),
        GLaSClassifier(dim=16, epochs=3, device="cpu"),
    ],
    expected_failed_checks=lambda estimator: FAILING.get(type(estimator).__name__, {}),
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def packages():
    """Return 400 texts of the bundled set and the names of their labels."""
    data = load_debian().train.take(np.arange(400))
    names = np.array(data.label_names)
    return list(data.texts), [names[row.indices].tolist() for row in data.Y]


def test_every_model_has_an_estimator():
    ours = {each.model_class for each in estimators.LabelClassifier.__subclasses__()}
    assert {each.name for each in ours} == set(model_names())


def test_texts_and_lists_of_labels(packages):
    texts, labels = packages
    model = LinearClassifier(threshold=0.3).fit(texts[:300], labels[:300])
    assert "role::program" in model.classes_
    assert model.model_.calibration_ is not None
    found = model.predict(texts[300:])
    assert sp.issparse(found)
    assert found.shape == (100, len(model.classes_))
    names = model.predict_labels(texts[300:])
    assert [len(row) for row in names] == np.diff(found.indptr).tolist()
    probabilities = model.predict_proba(texts[300:])
    assert ((probabilities >= 0.3).sum(axis=1) >= np.diff(found.indptr)).all()
    top = model.predict_top(texts[300:], 1)
    chosen = probabilities[np.arange(100), top.labels[:, 0]]
    assert np.allclose(chosen, np.clip(top.scores[:, 0], 1e-7, 1 - 1e-7))
    assert precision_at(1)(model, texts[300:], labels[300:]) > 0.5
    assert 0 <= model.score(texts[300:], labels[300:]) < 1


def test_labels_that_training_has_not_seen_are_missed(packages):
    texts, _ = packages
    model = LinearClassifier(calibrate=False).fit(texts[:50], [["a"]] * 25 + [["b"]] * 25)
    assert precision_at(1)(model, texts[:2], [["new"], ["new"]]) == 0
    assert precision_at(2)(model, texts[:1], [["a", "new"]]) == 0.5


def test_k_limits_the_labels(packages):
    texts, labels = packages
    model = LinearClassifier(k=1, threshold=0.0, calibrate=False).fit(texts, labels)
    assert np.diff(model.predict(texts[:9]).indptr).tolist() == [1] * 9


def test_pipeline_and_grid_search(packages):
    texts, labels = packages
    Y = MultiLabelBinarizer(sparse_output=True).fit_transform(labels)
    pipeline = make_pipeline(TfidfVectorizer(), LinearClassifier(calibrate=False))
    assert cross_val_score(pipeline, texts, Y.toarray(), cv=3, scoring=precision_at(1)).mean() > 0.5
    values = {"linearclassifier__C": [0.001, 1.0]}
    search = GridSearchCV(pipeline, values, scoring=precision_at(1), cv=KFold(2)).fit(texts, labels)
    assert search.best_params_ == {"linearclassifier__C": 1.0}
    by_threshold = GridSearchCV(LinearClassifier(calibrate=False), {"threshold": [0.1, 0.9]}, cv=2)
    assert by_threshold.fit(texts, Y.toarray()).best_score_ >= 0


def test_one_class_for_each_document(packages):
    texts, labels = packages
    kinds = ["program" if "role::program" in row else "other" for row in labels]
    model = LinearClassifier().fit(texts[:300], kinds[:300])
    assert model.classes_.tolist() == ["other", "program"]
    assert model.score(texts[300:], kinds[300:]) > 0.6
    assert model.decision_function(texts[:5]).shape == (5,)
    calibrated = CalibratedClassifierCV(LinearClassifier(), cv=2).fit(texts, kinds)
    assert np.allclose(calibrated.predict_proba(texts[:5]).sum(axis=1), 1)


def test_clone_and_pickle(packages):
    texts, labels = packages
    model = KNNClassifier(n_neighbours=7, calibrate=False)
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(n_neighbours=9).n_neighbours == 9
    model.fit(texts, labels)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(texts[:3]), model.predict_proba(texts[:3]))


def test_wrong_input_gets_a_sentence(packages, monkeypatch):
    texts, labels = packages
    with pytest.raises(TypeError, match="has no parameter 'thresold'; did you mean 'threshold'"):
        LinearClassifier(thresold=0.2)
    with pytest.raises(ValueError, match="X holds 400 documents, but y has 399 rows"):
        LinearClassifier().fit(texts, labels[:-1])
    with pytest.raises(ValueError, match="'C' parameter of Linear must be"):
        LinearClassifier(C=-1.0).fit(texts, labels)
    with pytest.raises(ValueError, match="attention-xml cannot be trained on feature rows"):
        estimators.AttentionXMLClassifier().fit(np.eye(3), [[1, 0], [0, 1], [1, 1]])
    with pytest.raises(ValueError, match="k must be at least 1"):
        precision_at(0)
    model = LinearClassifier(calibrate=False).fit(texts, labels)
    monkeypatch.setattr(estimators, "free_ram", lambda: 1000)
    with pytest.raises(DataError, match="give fewer documents at a time, or call predict_top"):
        model.predict_proba(texts)
