"""The one place that knows numba: compiled where it is installed, plain Python where it is not."""

import os
from collections.abc import Callable
from typing import TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])

try:
    import numba
except ModuleNotFoundError:  # pragma: no cover
    COMPILED = False
else:
    COMPILED = os.environ.get("HILL_NO_NUMBA", "0") in ("", "0")


def njit(function: Function) -> Function:
    """Compile a function over arrays and keep the result on disk; set HILL_NO_NUMBA=1 to run it as Python."""
    if not COMPILED:
        return function
    # No fastmath: the same source must give the same bits with and without the compiler.
    return cast(Function, numba.njit(cache=True)(function))
