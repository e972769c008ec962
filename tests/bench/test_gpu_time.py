"""What the recipes for GPUs report of training."""

import pytest
import scipy.sparse as sp
from planted import planted_rows

torch = pytest.importorskip("torch", reason="GLaS needs torch")

from bench import gpu_time, yso_gpu  # noqa: E402

SETTINGS = {"dim": 8, "epochs": 2, "batch_size": 50, "device": "cpu"}


@pytest.fixture
def rows(tmp_path):
    for part, seed in (("train", 0), ("test", 1)):
        for name, matrix in zip("XY", planted_rows(100, seed=seed), strict=True):
            sp.save_npz(tmp_path / f"{part}_{name}.npz", matrix)
    return tmp_path


def test_seconds_and_steps_of_training(rows):
    measured = yso_gpu.measure(rows, SETTINGS, profile=True)
    assert (measured["documents"], measured["labels"]) == (100, 12)
    assert 0 < measured["seconds of training"] <= measured["seconds of fit"]
    assert 0 <= measured["seconds waiting for batches"] <= measured["seconds of training"]
    assert measured["steps"] == 4
    assert "GiB of GPU memory" not in measured


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_where_the_time_of_a_gpu_goes():
    X, Y = planted_rows(1000)
    found = gpu_time.profile(lambda: yso_gpu._make({**SETTINGS, "device": "cuda"}).fit(X, Y))
    assert 0 < found["share of time the GPU computes"] < 1
    assert found["kernels"]
