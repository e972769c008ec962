"""What training chooses can be given to another training, which then chooses nothing."""

import pytest
from planted import planted_dataset

from longtail.models import get_model_class

DATA = planted_dataset(n=150, n_labels=8)


@pytest.mark.parametrize(
    ("name", "quick"), [("knn", {}), ("mnn", {"epochs": 1}), ("dxml", {"epochs": 1})]
)
def test_choices_are_parameters_that_are_kept(name, quick):
    model = get_model_class(name)(**quick).fit(DATA)
    again = model.with_parameters(**model.choices).fit(DATA)
    assert model.choices
    assert again.choices == model.choices
    assert None not in again.choices.values()
