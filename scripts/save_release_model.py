"""Save a small model by every name, or of those named, as this version writes it.

Run it once for each release and commit the folders that it makes in tests/releases;
`tests/test_releases.py` opens them with every later version and expects the scores beside them.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from planted import planted_texts  # noqa: E402

from longtail import __version__  # noqa: E402
from longtail.models import get_model_class, model_names  # noqa: E402

N_LABELS = 12
SMALL = {"linear": {"flat": 0, "branching": 3, "max_leaf": 4, "trees": 2}}


def main() -> None:
    """Train, save and predict with each model."""
    for name in sys.argv[1:] or model_names():
        folder = ROOT / "tests" / "releases" / f"{name}-{__version__}"
        model = get_model_class(name)(**SMALL.get(name, {})).fit(planted_texts(n_labels=N_LABELS))
        folder.mkdir(parents=True)
        model.save(folder / "model")
        top = model.predict(planted_texts(n=5, n_labels=N_LABELS, seed=1).texts)
        expected = {"labels": top.labels.tolist(), "scores": top.scores.tolist()}
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")
        print(f"saved {folder.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
