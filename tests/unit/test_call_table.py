"""The table of calls in the documents and the one in the code are one."""

from __future__ import annotations

import runpy
from pathlib import Path

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "call_table.py"))


def test_page_has_the_table_that_the_rows_make() -> None:
    """`python tools/call_table.py` writes it."""
    page = TOOL["PAGE"].read_text()
    assert TOOL["put_into"](page) == page
