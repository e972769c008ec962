"""Settings of the whole test run, made before anything loads numpy or torch."""

import os
import signal

from hypothesis import settings

# The networks of the tests are tiny: a second thread costs more than it gains. One thread makes
# tests/test_model_contract.py 2.4 times as quick on two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a background job
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Chosen by --hypothesis-profile thorough, where a test does not say how many cases it tries.
settings.register_profile("thorough", max_examples=10_000)
