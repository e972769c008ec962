"""Every method that the benchmark compares, with its settings.

The peers run with their own defaults, or with the settings that their documentation names.
"""

from dataclasses import dataclass, field
from typing import Any

OURS = "longtail"


@dataclass(frozen=True)
class Method:
    """One row of the table: a package, the script that runs it, and one setting of it."""

    name: str
    package: str
    script: str
    setting: dict[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        """Whether it is one of our own models."""
        return self.package == OURS


METHODS = [
    Method("longtail linear", OURS, "run_longtail", {"model": "linear"}),
    Method("longtail linear fast", OURS, "run_longtail", {"model": "linear", "preset": "fast"}),
    # PECOS' own defaults for XR-Linear, written out; beam 10, squared hinge, threshold 0.1.
    Method(
        "pecos xr-linear",
        "libpecos",
        "run_pecos",
        {"indexer_type": "hierarchicalkmeans", "nr_splits": 16, "max_leaf_size": 100},
    ),
    # The three settings in Omikuji's README, three trees each: balanced binary trees as in Parabel
    # (its default), wide trees by plain k-means as in Bonsai, and binary trees of which only every
    # sixth level is kept, as in AttentionXML.
    Method("omikuji parabel", "omikuji", "run_omikuji"),
    Method(
        "omikuji bonsai",
        "omikuji",
        "run_omikuji",
        {"cluster_balanced": False, "cluster_k": 100, "max_depth": 3},
    ),
    Method("omikuji collapsed", "omikuji", "run_omikuji", {"collapse_every_n_layers": 5}),
    # napkinXC's default: one binary tree by balanced k-means, logistic loss, exact search.
    Method("napkinxc plt", "napkinxc", "run_napkinxc", {"model": "PLT"}),
]
# Off unless asked for by name: one classifier for each label takes hours on the larger sets.
SLOW_METHODS = [Method("napkinxc ova", "napkinxc", "run_napkinxc", {"model": "BR"})]


def choose(packages: list[str] | None, names: list[str] | None = None) -> list[Method]:
    """Return the methods of these peers and always ours, or those with exactly these names."""
    known = [*METHODS, *SLOW_METHODS]
    if names is not None:
        if unknown := sorted(set(names) - {method.name for method in known}):
            raise SystemExit(f"no such method: {', '.join(unknown)}")
        return [method for method in known if method.name in names]
    peers = {method.package for method in METHODS} - {OURS}
    if unknown := sorted(set(packages or []) - peers):
        raise SystemExit(
            f"no such peer: {', '.join(unknown)}; there are {', '.join(sorted(peers))}"
        )
    return [m for m in METHODS if m.ours or packages is None or m.package in packages]
