"""The peers: other packages for the same task as our models, each behind a small adapter.

An adapter runs in its own process and, where needed, in its own environment (see `measure.py`),
with the package's defaults or the settings of its documentation.
"""

from dataclasses import dataclass, field
from typing import Any

OURS = "longtail"
EVENTS = "LONGTAIL_EVENTS"  # the environment variable that names the pipe for progress


@dataclass(frozen=True)
class Contender:
    """A method of a comparison: a package, the module that runs it, and its setting."""

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
# Run only if asked for by name: one classifier for each label takes hours on the larger sets.
SLOW_PEERS = (Contender("napkinxc ova", "napkinxc", "longtail.peers.napkinxc", {"model": "BR"}),)
