"""Every method that the benchmark compares: two of our own, and the peers."""

from longtail.compare.contenders import MODULE
from longtail.peers import OURS, PEERS, SLOW_PEERS, Contender

METHODS = [
    Contender("longtail linear", OURS, MODULE, {"model": "linear"}),
    Contender("longtail linear fast", OURS, MODULE, {"model": "linear", "preset": "fast"}),
    *PEERS,
]


def choose(packages: list[str] | None, names: list[str] | None = None) -> list[Contender]:
    """Return the methods of these peers and always ours, or those with exactly these names."""
    known = [*METHODS, *SLOW_PEERS]
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
