"""The streams that the command was started with, made fit for use.

Guards two promises: what a command prints is written whole, or it fails; and a stream that was closed before the start
(`>&-`) is told by name when it is needed, and its number is no file's or socket's of the command.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, TextIO

from bus.cli.whole_writes import WholeOutput


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
