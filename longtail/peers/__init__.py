"""The peers: other packages that do what our models do, each behind a small adapter.

An adapter runs in a process, and if need be in an environment, of its own (see `measure.py`), with
its own defaults or the settings that its documentation names.
"""

from dataclasses import dataclass, field
from typing import Any

OURS = "longtail"


@dataclass(frozen=True)
class Contender:
    """What takes part in a comparison: a package, the module that runs it, and its setting."""

    name: str
    package: str
    module: str
    setting: dict[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        """Whether it is one of our own models."""
        return self.package == OURS


PEERS = (
    # PECOS' own defaults for XR-Linear, written out; beam 10, squared hinge, threshold 0.1.
    Contender(
        "pecos xr-linear",
        "libpecos",
        "longtail.peers.pecos",
        {"indexer_type": "hierarchicalkmeans", "nr_splits": 16, "max_leaf_size": 100},
    ),
    # The three settings in Omikuji's README, three trees each: balanced binary trees as in Parabel
    # (its default), wide trees by plain k-means as in Bonsai, and binary trees of which only every
    # sixth level is kept, as in AttentionXML.
    Contender("omikuji parabel", "omikuji", "longtail.peers.omikuji"),
    Contender(
        "omikuji bonsai",
        "omikuji",
        "longtail.peers.omikuji",
        {"cluster_balanced": False, "cluster_k": 100, "max_depth": 3},
    ),
    Contender(
        "omikuji collapsed", "omikuji", "longtail.peers.omikuji", {"collapse_every_n_layers": 5}
    ),
    # napkinXC's default: one binary tree by balanced k-means, logistic loss, exact search.
    Contender("napkinxc plt", "napkinxc", "longtail.peers.napkinxc", {"model": "PLT"}),
)
# Off unless asked for by name: one classifier for each label takes hours on the larger sets.
SLOW_PEERS = (Contender("napkinxc ova", "napkinxc", "longtail.peers.napkinxc", {"model": "BR"}),)
