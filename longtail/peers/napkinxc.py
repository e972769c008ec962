"""napkinXC: the setting's "model" is one of its classes, the rest are that class's parameters."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from napkinxc import models  # type: ignore[import-not-found]

from longtail.peers.measure import Method, pad, run


class NapkinXC(Method):
    """Trains directly into its folder, so saving counts as training."""

    def train(self, data: Any) -> None:
        """Build the tree and train its nodes."""
        X, Y = data
        parameters = dict(self.setting)
        seed = int(parameters.pop("seed", 0))
        make = getattr(models, parameters.pop("model"))
        self.model = make(str(self.folder), threads=self.threads, seed=seed, **parameters)
        self.model.fit(X, Y)

    def save(self) -> None:
        """Do nothing: `fit` has written the model."""

    def load(self) -> None:
        """Read the weights back."""
        self.model.load()

    def predict(self, rows: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
        """Search its default way: exact."""
        return pad(self.model.predict_proba(rows, top_k=self.k), self.k)


if __name__ == "__main__":
    run(NapkinXC)
