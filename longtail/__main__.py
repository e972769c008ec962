"""The `longtail` command, and `python -m longtail`."""

import os
import sys


def main() -> None:
    """Run the command line; a Ctrl-C while it is still being loaded ends with one line, too."""
    try:
        from longtail.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Stopped: nothing was written.\n")
        sys.stderr.flush()
        os._exit(130)  # cli.exits.INTERRUPTED, which may not be loaded yet


if __name__ == "__main__":
    main()
