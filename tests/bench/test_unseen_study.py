"""The study of labels without documents hides what it says it hides."""

import numpy as np

from bench.unseen_study import hide_labels, measure
from longtail.data import as_dataset
from longtail.models import Lexical
from longtail.models.relabel import add_label


def test_hidden_labels_are_found_only_once_they_are_added():
    rng = np.random.default_rng(0)
    names = [f"thing{i}" for i in range(30)]
    own = [rng.choice(names, size=2, replace=False).tolist() for _ in range(400)]
    data = as_dataset([f"a {a} or a {b}" for a, b in own], own)
    train, test, hidden = hide_labels(data, 3, seed=0)
    assert set(hidden).isdisjoint(train.label_names)
    model = Lexical().fit(train)
    assert measure(model, test, hidden)["recall@5 of the hidden"] == 0
    for name in hidden:
        add_label(model, name)
    assert measure(model, test, hidden)["recall@5 of the hidden"] > 90
