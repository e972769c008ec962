"""The memory that a process may use: too little is said at the start, in one sentence.

Below a limit on address space (`ulimit -v`) the libraries that we import do not fail but abort, or
never end: measured on two cores, importing numba needs 500 MB of it.
"""

from longtail.errors import LongtailError

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

MIB = 1 << 20
LEAST, LEAST_PER_CORE = 576 * MIB, 16 * MIB
TIGHT = 8 << 30  # below this, a library's error that nobody foresaw is likely one of memory


def address_space() -> float:
    """Return how many bytes of address space this process may use; infinity for no limit."""
    if resource is None:
        return float("inf")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else float(limit)


def check_address_space() -> None:
    """Raise an error if not even the libraries would fit."""
    limit = address_space()
    if limit == float("inf"):
        return
    from longtail.runtime.parallel import count_cores

    least = LEAST + LEAST_PER_CORE * count_cores()
    if limit < least:
        raise LongtailError(
            f"there is not enough memory: this process may use {limit / MIB:,.0f} MiB of address "
            f"space, and needs {least / MIB:,.0f} MiB or more (see ulimit -v)"
        )


def may_lack_memory() -> bool:
    """Whether an unforeseen error is likely to come from a limit on memory."""
    return address_space() < TIGHT
