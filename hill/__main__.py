"""`python -m hill` is the command `hill`."""

from hill.cli.common import main

main()
