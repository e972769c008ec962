"""How long torch's threads stay awake while they wait for one another.

libgomp's threads spin for milliseconds before they sleep. Where other programs need the cores too,
each spin keeps the very thread from running that is waited for, and a training takes ten times as
long. The variables count only if they are set before torch is loaded.
"""

import os

CHOSEN_BY = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # whoever sets one of these has chosen
TURNS = 1000  # of a spin: some microseconds, which steps of a quiet machine hardly notice


def wait_briefly() -> None:
    """Let threads of libgomp that is loaded from now on sleep soon."""
    if not any(os.environ.get(name) for name in CHOSEN_BY):
        os.environ["GOMP_SPINCOUNT"] = str(TURNS)
