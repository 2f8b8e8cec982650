"""Reads files of settings, keys, tokens and passwords whole.

Guards two promises: a path of something else, a named pipe, a device or a huge file, is refused, and neither holds the
reader nor fills its memory; and no error contains what was read. A pipe that this process has open already, as a shell
makes it for `<(COMMAND)`, is read to its end.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

FILE_BYTES_MAX = 1 << 20
_OPEN_ALREADY = ("/dev/fd", "/proc/self/fd")
_STANDARD_INPUT = "/dev/stdin"


class FileFault(ValueError):
    """The file cannot be read: what was expected and found, without the path."""


def read_bounded(path: Path) -> bytes:
    """The whole file, at most `FILE_BYTES_MAX` bytes. Raises `FileFault`."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISFIFO(mode) and _is_open_already(path):
                os.set_blocking(file.fileno(), True)
            elif not stat.S_ISREG(mode):
                raise FileFault(f"expected a regular file, found {_name_kind(mode)}")
            found = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise FileFault(f"expected a readable file, found: {error.strerror or type(error).__name__}") from None
    if len(found) > FILE_BYTES_MAX:
        raise FileFault(f"expected at most {FILE_BYTES_MAX} bytes, found more")
    return found


def read_bounded_text(path: Path) -> str:
    """The same of a file that is UTF-8, its ends of lines as they are. Raises `FileFault`."""
    try:
        return read_bounded(path).decode()
    except UnicodeDecodeError as error:
        raise FileFault(f"expected UTF-8 text, found other bytes at position {error.start}") from None


def _open_at_once(path: str, flags: int) -> int:
    """Without O_NONBLOCK a named pipe is open when another process writes to it, which may be never."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def _is_open_already(path: Path) -> bool:
    return str(path.parent) in _OPEN_ALREADY or str(path) == _STANDARD_INPUT


def _name_kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    return "a device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "something else"
