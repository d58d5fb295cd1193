"""Processes that have all that is slow to import when they start, and can be killed."""

from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

FORKS = get_context("forkserver")
PRELOADED = [
    "tests.faults.helpers",
    "tests.train.ranks",
    "accelerate",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "transformers.models.bert.modeling_bert",
]


def start(program: Callable[..., None], *arguments: Any, **options: Any) -> Any:
    """A process that runs this."""
    FORKS.set_forkserver_preload(PRELOADED)
    process = FORKS.Process(target=program, args=arguments, kwargs=options)
    process.start()
    return process
