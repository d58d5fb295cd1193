"""`python -m tests.faults`: inject every fault many times, and print how many were survived."""

import os
import sys

import pytest

os.environ["HILL_FAULTS"] = "full"
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.faults import table

code = pytest.main(["-q", "-p", "no:cacheprovider", "--durations", "5", "tests/faults", *sys.argv[1:]])
sys.stdout.write(f"\n{table()}\n")
sys.exit(code)
