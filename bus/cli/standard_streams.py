"""The streams that the command was started with, made fit for use.

Guards three promises: what a command prints is written whole, or it fails; after an exception, Ctrl-C included, it is
known how many bytes the operating system has taken; and a stream that was closed before the start (`>&-`) is told by
name when it is needed, and its number is no file's or socket's of the command. Python's own streams do not promise
the first two: with PYTHONUNBUFFERED a write may be short without a word, and a descriptor that does not wait makes them
fail.
"""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import sys
from typing import Any, TextIO


def prepare_streams() -> None:
    """Once, before anything is opened."""
    for number in range(3):
        _occupy(number)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_Closed("standard input")))
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  it is open for as long as the process
    if sys.stdout is None:
        sys.stdout = _text(_Closed("standard output"), None)
    else:
        sys.stdout = _text(WholeOutput(sys.stdout.fileno()), sys.stdout)


def _occupy(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one


def _text(raw: io.RawIOBase, like: TextIO | None) -> TextIO:
    # A name or a value that the terminal's encoding has no characters for is no reason to fail.
    errors = "backslashreplace" if like is None or like.errors == "strict" else like.errors
    encoding = "utf-8" if like is None else like.encoding
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=raw.isatty())


class _Closed(io.RawIOBase):
    """Fails when it is used, not before: a command that has nothing to read or to print does not need it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        raise OSError(errno.EBADF, f"{self._name} is closed")

    def write(self, data: Any, /) -> int:
        raise OSError(errno.EBADF, f"{self._name} is closed")


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
