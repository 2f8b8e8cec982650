"""DuckDB's extension for Delta tables, a judge: in a process of its own, with the DuckDB that it is made for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_READERS = Path(sys.prefix) / "readers"  # `make setup` puts it there
_QUERY = """
import json, sys, duckdb
extension, query = sys.argv[1:]
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.load_extension(extension)
print(json.dumps(connection.sql(query).fetchall()))
"""


def query_by_duckdb(query: str) -> list[tuple[Any, ...]]:
    """The rows of a query with `delta_scan('<path of a table>')` in it; their values are of JSON's types."""
    extensions = list(_READERS.rglob("delta.duckdb_extension"))
    assert len(extensions) == 1, f"expected DuckDB's delta extension in {_READERS}, found {extensions}: run make setup"
    command = [sys.executable, "-c", _QUERY, str(extensions[0]), query]
    environment = {**os.environ, "PYTHONPATH": str(_READERS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [tuple(row) for row in json.loads(done.stdout)]
