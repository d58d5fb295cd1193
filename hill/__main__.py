"""`python -m hill` is the command `hill`."""

from hill.cli import main

main()
