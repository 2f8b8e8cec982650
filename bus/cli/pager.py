"""Text that is longer than the terminal, in the user's pager."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import click

# As git's: ends by itself where all fits, keeps colours, does not clear the screen, and cuts no line into several.
_LESS = "FRXS"


def write_paged(text: str) -> None:
    """On a terminal that `text` is too high or too wide for, in `$PAGER`, or less; `PAGER=` or `PAGER=cat`: never."""
    command = shlex.split(os.environ.get("PAGER", "less"))
    if not command or not _is_needed(text) or shutil.which(command[0]) is None:
        click.echo(text)
        return
    environment = {**os.environ, "LESS": os.environ.get("LESS", _LESS)}
    # Ctrl-C is the pager's, which ends what it does and not itself.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        with suppress(BrokenPipeError):
            process.communicate(f"{text}\n".encode(errors="backslashreplace"))
        process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _is_needed(text: str) -> bool:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return text.count("\n") + 2 > shutil.get_terminal_size().lines
