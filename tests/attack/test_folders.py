"""A few crafted folders; `make attack` tries many, of all models, with bounds checks."""

from random import Random

from attack.folders import FORMS, prepare_forms
from longtail.models import BUILT_IN


def test_crafted_folders_answer_or_are_refused(tmp_path):
    attempt = prepare_forms(tmp_path, ["linear tree", "linear flat", "knn", "forest", "fusion"])
    outcomes = [attempt(Random(seed)) for seed in range(150)]
    assert set(outcomes) == {"answered", "refused"}


def test_every_model_is_attacked():
    assert {name for name, _, _ in FORMS.values()} == set(BUILT_IN)
