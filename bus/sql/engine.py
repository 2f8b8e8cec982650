"""The embedded engine, locked to one root.

Guards two promises: a session reads no file but those below the root's topics, and reaches for no network, no
extension, no secret and no variable of the program; and none of its settings can be changed by a statement. The lock
does not keep a statement from writing where it may read: that is what read_only.py is for.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

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


def open_engine(root: Path) -> duckdb.DuckDBPyConnection:
    """An engine that may read what is below the topics of `root`. What does not fit into memory goes to a folder of its
    own beside other temporary files, not to the working directory, which may be a root."""
    engine = duckdb.connect()
    spilled = tempfile.mkdtemp(prefix="bus-sql-")
    weakref.finalize(engine, shutil.rmtree, spilled, ignore_errors=True)
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
