"""Settings of the Python workers that Spark runs its tasks in, made once in each.

Nothing of it changes a result. It spares a worker, which has a task every tenth of a second or reads hundreds of
megabytes, what costs more than the task: looking through all modules for garbage behind each task, which Spark asks
for, and getting back from the system the memory that was given to it just before. The latter is for readers: they have
each column in their hands for a moment. Writers, who wait for answers, were slower with it.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark import TaskContext

_KEEP_MEMORY_MS = 1_000


@contextmanager
def settled_worker(*, keeps_memory: bool) -> Iterator[None]:
    """Around what a task does. Elsewhere, in a driver or a test, nothing is changed."""
    is_task = TaskContext.get() is not None
    if is_task and keeps_memory:
        _keep_memory()
    try:
        yield
    finally:
        if is_task:
            _keep_modules()


@functools.cache
def _keep_memory() -> None:
    """Arrow's columns take memory that columns before them had, if they come within a second."""
    if "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())
        pa.jemalloc_set_decay_ms(_KEEP_MEMORY_MS)


@functools.cache
def _keep_modules() -> None:
    """Keep all objects that are there at the end of the first task: they are no garbage, and need not be looked at
    again."""
    gc.freeze()
