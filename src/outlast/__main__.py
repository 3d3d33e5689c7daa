"""`python -m outlast` is `outlast`."""

from outlast.cli import main

main()
