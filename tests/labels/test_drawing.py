import numpy as np
import pytest

from longtail.labels.drawing import draw_places


@pytest.mark.parametrize("seed", [0, 1, 7919, 2**31, 2**32 - 1, 2**32, 2**40 + 3, 2**64 - 1])
def test_places_are_those_that_numpy_draws(seed):
    for n in (1, 2, 3, 16, 17, 100, 9999, 10_001, 670_000, 2**31 - 1):
        for k in {min(n, few) for few in (1, 2, 5, 16)}:
            expected = np.random.default_rng(seed).choice(n, size=k, replace=False)
            np.testing.assert_array_equal(draw_places(n, k, np.uint64(seed)), expected)
