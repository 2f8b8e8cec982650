"""The embedded engine, locked to one root, and calls of it that Ctrl-C ends.

Guards three promises: a session reads no file but those below the root's topics, and reaches for no network, no
extension, no secret and no variable of the program; none of its settings can be changed by a statement; and a statement
ends with Ctrl-C. The lock does not keep a statement from writing where it may read: that is what read_only.py is for.
The engine runs a statement in one call, and Python takes up a signal between calls only. So in the main thread, where
signals come to, the call is made by another thread, and the engine is told when one comes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import duckdb

from bus.sql.statement import quote_text
from bus.sql.views import escape_globs

# Global, since each statement has a cursor of its own, and that is another session. Data files never change, so their
# footers are kept. The last two cannot be undone.
_SETTINGS = (
    "TimeZone = 'UTC'",
    "parquet_metadata_cache = true",
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "allow_community_extensions = false",
    "allow_persistent_secrets = false",
    "python_enable_replacements = false",
    "enable_external_access = false",
    "lock_configuration = true",
)


def _remove(folder: str, process: int) -> None:
    """A child of a fork has a copy of the engine; the folder is its parent's."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def open_engine(root: Path) -> duckdb.DuckDBPyConnection:
    """An engine that may read what is below the topics of `root`. What does not fit into memory goes to a folder of its
    own beside other temporary files, not to the working directory, which may be a root."""
    engine = duckdb.connect()
    spilled = tempfile.mkdtemp(prefix="bus-sql-")
    weakref.finalize(engine, _remove, spilled, os.getpid())
    topics = f"{root}/topics/"
    # A path is checked as it is written in a statement, and again as it was found.
    folders = ", ".join(quote_text(folder) for folder in (topics, escape_globs(topics)))
    settings = [
        f"allowed_directories = [{folders}]",
        f"temp_directory = {quote_text(spilled)}",
        *_SETTINGS,
    ]
    engine.execute("; ".join(f"SET GLOBAL {setting}" for setting in settings))
    return engine


_INTERRUPTED = "Query interrupted"


@contextmanager
def interrupts() -> Iterator[None]:
    """Within it Ctrl-C is a `KeyboardInterrupt` also where a short call of the engine runs in the main thread: the
    engine takes the signal for itself, and raises a RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        if str(error) != _INTERRUPTED:
            raise
        raise KeyboardInterrupt from None


T = TypeVar("T")
_INTERRUPT_AGAIN_S = 0.05  # the call may not have begun when it is interrupted


def run_interruptible(session: duckdb.DuckDBPyConnection, call: Callable[[], T]) -> T:
    """What `call` returns or raises. `KeyboardInterrupt` when the engine has let go of the statement."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # it is raised again, in the thread that waits for it
            outcome.set_exception(error)

    thread = threading.Thread(target=work, name="bus-sql", daemon=True)
    try:
        thread.start()
        return outcome.result()
    except KeyboardInterrupt:
        while thread.is_alive():
            session.interrupt()
            thread.join(_INTERRUPT_AGAIN_S)
        raise
