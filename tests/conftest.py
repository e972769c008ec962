"""Makes tests/planted.py importable, and Ctrl-C work where a shell has switched it off."""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a background job
    signal.signal(signal.SIGINT, signal.default_int_handler)
