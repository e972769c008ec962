"""Omikuji: settings are fields of its hyper-parameters; what is not given keeps its default."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import omikuji  # type: ignore[import-not-found]
import scipy.sparse as sp
from omikuji._libomikuji import ffi, lib  # type: ignore[import-not-found]

from longtail.peers.measure import Method, pad, run

Pairs = list[tuple[int, float]]


class Omikuji(Method):
    """Reads its training data from a text file, and predicts one document a call."""

    def take_data(self, X: sp.csr_matrix, Y: sp.csr_matrix) -> Any:
        """Let it read the rows; `Model.train_on_data` would count reading as training."""
        path = self.folder.parent / "train.txt"
        _write_text(path, X, Y)
        self.pool = omikuji._ThreadPoolHandle(self.threads)
        data = lib.load_omikuji_data_set(ffi.new("char[]", str(path).encode()), self.pool.ptr)
        path.unlink()
        if data == ffi.NULL:
            raise RuntimeError("Omikuji failed to load the data (it gives no reason)")
        return ffi.gc(data, lib.free_omikuji_data_set)

    def train(self, data: Any) -> None:
        """Train all trees."""
        parameters = omikuji.Model.default_hyper_param()
        for name, value in self.setting.items():
            if name != "seed":  # it takes none: every run is another one
                setattr(parameters, name, value)
        model = lib.train_omikuji_model(data, parameters, self.pool.ptr)
        if model == ffi.NULL:
            raise RuntimeError("Omikuji failed to train (it gives no reason)")
        self.model = omikuji.Model(model)

    def save(self) -> None:
        """Write the model."""
        self.model.save(str(self.folder))

    def load(self) -> None:
        """Read the model."""
        self.model = omikuji.Model.load(str(self.folder))
        self.model.init_prediction_thread_pool(self.threads)

    def rows(self, X: sp.csr_matrix) -> list[Pairs]:
        """Return each row as the pairs that it wants."""
        cells = list(zip(X.indices.tolist(), X.data.tolist(), strict=True))
        ends = X.indptr.tolist()
        return [cells[start:end] for start, end in pairwise(ends)]

    def predict(self, rows: list[Pairs]) -> tuple[np.ndarray, np.ndarray]:
        """Search with its default beam of 10."""
        if len(rows) == 1:
            return pad([self._search(rows[0])], self.k)
        with ThreadPoolExecutor(self.threads) as pool:
            return pad(list(pool.map(self._search, rows)), self.k)

    def _search(self, pairs: Pairs) -> Pairs:
        found: Pairs = self.model.predict(pairs, top_k=self.k)
        return found


def _write_text(path: Path, X: sp.csr_matrix, Y: sp.csr_matrix) -> None:
    """Write the XC repository's sparse format."""
    with path.open("w") as file:
        file.write(f"{X.shape[0]} {X.shape[1]} {Y.shape[1]}\n")
        for row in range(X.shape[0]):
            at = slice(X.indptr[row], X.indptr[row + 1])
            labels = Y.indices[Y.indptr[row] : Y.indptr[row + 1]].tolist()
            pairs = zip(X.indices[at].tolist(), X.data[at].tolist(), strict=True)
            cells = " ".join(f"{feature}:{value:.9g}" for feature, value in pairs)
            file.write(f"{','.join(map(str, labels))} {cells}\n")


if __name__ == "__main__":
    run(Omikuji)
