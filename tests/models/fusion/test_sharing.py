"""What members hold alike is kept once, and comes back."""

import numpy as np
import pytest

from longtail.models.fusion.sharing import describe_shared, share, unshare
from longtail.runtime.store import Files


def make_files():
    big = np.arange(2000)
    files = Files(arrays={"counts": big}, texts={"label_names": ["a", "b"]})
    for name in ("one", "two"):
        inner = Files(
            arrays={"counts": big.copy(), "same": np.ones(5000), "small": np.ones(3)},
            texts={"label_names": ["a", "b"], "words": [name, "x"]},
        )
        files.nest(name, inner)
    files.arrays["inner.two.other"] = big.astype(np.float64)  # equal numbers of another type
    return files


def test_copies_are_kept_once_and_come_back():
    files, whole = make_files(), make_files()
    share(files)
    describe_shared().check(files, {})
    assert sorted(files.arrays) == [
        "counts",
        "inner.one.same",
        "inner.one.small",
        "inner.two.other",
        "inner.two.small",
    ]
    assert sorted(files.texts) == ["inner.one.words", "inner.two.words", "label_names", "shared"]
    again = unshare(files)
    assert sorted(again.arrays) == sorted(whole.arrays)
    assert again.texts == whole.texts
    for name, array in whole.arrays.items():
        assert again.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(again.arrays[name], array)
    assert again.arrays["inner.two.same"] is again.arrays["inner.one.same"]


@pytest.mark.parametrize(
    "line",
    [
        "inner.two.counts\tnothing",
        "inner.two.counts",
        "label_counts\tcounts",
        "inner.one.small\tcounts",
        "inner.one.words\tlabel_names",
        "",
    ],
)
def test_a_list_that_does_not_fit_is_refused(line):
    files = make_files()
    share(files)
    files.texts["shared"] = [line]
    with pytest.raises(ValueError, match="cannot be a copy of"):
        unshare(files)
