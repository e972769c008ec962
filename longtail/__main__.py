"""`python -m longtail`."""

from longtail.cli import main

main()
