"""Where torch searches: its own CPU device, the way a GPU goes, and a GPU where there is one."""

import pytest


@pytest.fixture(params=["cpu:0", "cuda"])
def torch_device(request: pytest.FixtureRequest) -> str:
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return request.param
