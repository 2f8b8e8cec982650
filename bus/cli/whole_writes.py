"""Writes to a descriptor that take every byte, however little the other end takes at a time.

Guards two promises: no byte is dropped because a write was short, or would have had to wait; and after an exception,
Ctrl-C included, it is known how many bytes the operating system has taken. Python's own streams promise neither: with
PYTHONUNBUFFERED a write may be short without a word, and a descriptor that does not wait makes them fail.
"""

from __future__ import annotations

import io
import os
import select
import stat
from typing import Any

_FILE_CHUNK_BYTES = 1 << 20


class Descriptor:
    """One descriptor to write to, that of standard output; it stays open."""

    def __init__(self, number: int) -> None:
        self.number = number
        # Where a pipe has room at all, it has room for so much: such a write does not wait, so nothing interrupts it.
        is_file = stat.S_ISREG(os.fstat(number).st_mode)
        self._chunk_bytes = _FILE_CHUNK_BYTES if is_file else select.PIPE_BUF
        self._poll = select.poll()
        self._poll.register(number, select.POLLOUT)

    def wait(self, timeout_ms: int | None = None) -> bool:
        """Until there is room, or a write would fail. False: not within `timeout_ms`."""
        return bool(self._poll.poll(timeout_ms))

    def write_some(self, data: memoryview) -> int:
        """After `wait`: how many of the first bytes were taken. Raises `OSError`."""
        try:
            return os.write(self.number, data[: self._chunk_bytes])
        except BlockingIOError:
            return 0  # other processes may fill the same pipe
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from None


class WholeOutput(io.RawIOBase):
    """A raw stream whose `write` returns when all is written."""

    def __init__(self, number: int) -> None:
        self._descriptor = Descriptor(number)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor.number

    def isatty(self) -> bool:
        return os.isatty(self._descriptor.number)

    def write(self, data: Any, /) -> int:
        rest = memoryview(data).cast("B")
        count = len(rest)
        while rest:
            self._descriptor.wait()
            rest = rest[self._descriptor.write_some(rest) :]
        return count
