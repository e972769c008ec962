"""Our own models: the setting's "model" is its name, the rest goes to `from_settings`."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from bench.measure import K, Method, run
from longtail.models import get_model_class, load_model
from longtail.parallel import set_threads


class Longtail(Method):
    """A model of ours, used as a program would use it."""

    def warm_up(self) -> None:
        """Compile, or read what an earlier process compiled, on a few made-up rows."""
        set_threads(self.threads)
        self._build().fit(*_few_rows()).predict(_few_rows()[0], k=K)

    def train(self, data: Any) -> None:
        """Fit on the rows."""
        self.model = self._build().fit(*data)

    def save(self) -> None:
        """Write the model."""
        self.model.save(self.folder, overwrite=True)

    def load(self) -> None:
        """Read the model."""
        self.model = load_model(self.folder)

    def predict(self, rows: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
        """Rank with the model's own defaults."""
        top = self.model.predict(rows, k=K)
        return top.labels, top.scores

    def _build(self) -> Any:
        settings = dict(self.setting)
        return get_model_class(settings.pop("model")).from_settings(settings)


def _few_rows() -> tuple[sp.csr_matrix, sp.csr_matrix]:
    rng = np.random.default_rng(0)
    X = rng.random((300, 50)) * (rng.random((300, 50)) < 0.2)
    Y = rng.random((300, 20)) < 0.1
    return sp.csr_matrix(X.astype(np.float32)), sp.csr_matrix(Y.astype(np.float32))


if __name__ == "__main__":
    run(Longtail)
