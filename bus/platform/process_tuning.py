"""Settings of the interpreter and the allocator, made before a process of the bus starts any thread; and how a broker
gives memory back once it is idle.

For processes that are the bus's own (the broker, `bus perf`): a library must not do this to its host. Every setting
here is a measured one, and none changes what the process does; the number of open files is a bound on strangers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import resource
import sys
import time
from collections.abc import Awaitable, Callable

import pyarrow as pa

# A thread that computes gives the interpreter to the event loop after so long; Python's own 5 ms would be latency.
_SWITCH_INTERVAL_S = 0.0005

# When young, middle and full garbage collections are due. With Python's own 700, 10 and 10 a request of 20,000 items
# causes full ones, which hold the event loop for 60 to 200 ms; with these it causes none, and middle ones of 15 ms.
_COLLECTION_THRESHOLDS = (10_000, 10, 20)

# Connections that a listener takes where the limit of open files allows more: each takes about 30 KB.
CONNECTIONS_MAX = 20_000
# Open files that connections leave, unless that is more than half of all.
_FILES_KEPT = 2_000

# glibc's mallopt. By default every buffer of a megabyte is mapped and unmapped each time, and the kernel clears its
# pages: half of the broker's processor time when it serves batches of that size. Now freed memory is used again. Two
# arenas: more of them only keep more memory that is free.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
# A process is idle if it used less than this share of one core for this long; it keeps this much free memory for the
# next burst.
_IDLE_LOOK_S = 5.0
_IDLE_SHARE_MAX = 0.1
_FREE_BYTES_KEPT = 64 * 1024 * 1024

_ALLOCATOR_SETTINGS = {
    _M_MMAP_THRESHOLD: 32 * 1024 * 1024,
    _M_TRIM_THRESHOLD: 128 * 1024 * 1024,
    _M_TOP_PAD: 16 * 1024 * 1024,
    _M_ARENA_MAX: 2,
}
# The settings if memory is bounded: every freed buffer of a megabyte goes back to the system. With them a load of
# values of 4 MiB had a peak of 380 MiB; with those above, 640 MiB.
_TIGHT_ALLOCATOR_SETTINGS = {
    _M_MMAP_THRESHOLD: 1024 * 1024,
    _M_TRIM_THRESHOLD: 8 * 1024 * 1024,
    _M_TOP_PAD: 1024 * 1024,
    _M_ARENA_MAX: 2,
}


def tune_process(*, is_memory_bounded: bool = False) -> None:
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    # Not every libc has these; without them the process is slower and nothing else.
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in (_TIGHT_ALLOCATOR_SETTINGS if is_memory_bounded else _ALLOCATOR_SETTINGS).items():
            mallopt(parameter, value)
    pa.set_memory_pool(pa.system_memory_pool())
    _allow_open_files()


class _AllocatorInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    )  # fmt: skip


def free_bytes() -> int:
    """Bytes that the allocator has from the system and that nothing uses; 0 where the libc does not say."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return 0
    mallinfo.restype = _AllocatorInfo
    return int(mallinfo().fordblks)


def give_back_free_memory() -> None:
    """Return free memory to the system. Threads that allocate wait meanwhile."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


async def _give_back_in_thread() -> None:
    await asyncio.to_thread(give_back_free_memory)


async def give_back_memory_when_idle(
    free: Callable[[], int] = free_bytes,
    give_back: Callable[[], Awaitable[None]] = _give_back_in_thread,
    processor_clock: Callable[[], float] = time.process_time,
) -> None:
    """Return the memory of a burst of requests to the system once the process has been nearly idle for `_IDLE_LOOK_S`;
    runs until it is cancelled. A working process reuses free memory, which is cheaper."""
    while True:
        used_s = processor_clock()
        await asyncio.sleep(_IDLE_LOOK_S)
        if processor_clock() - used_s < _IDLE_LOOK_S * _IDLE_SHARE_MAX and free() >= _FREE_BYTES_KEPT:
            await give_back()


def connections_max(listeners: int) -> int:
    """Return the number of connections for each of `listeners` listeners that leaves open files to the others, to
    commits and to connections to other brokers."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(1, min(CONNECTIONS_MAX, (limit - min(_FILES_KEPT, limit // 2)) // listeners))


def _allow_open_files() -> None:
    """Raise the limit of open files to the hard limit, as the JVM does. With the soft one, often 1,024, that many idle
    connections leave none for commits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a system may name a limit that it does not take
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
