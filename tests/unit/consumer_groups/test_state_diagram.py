from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_diagram_of_the_document_is_that_of_the_table() -> None:
    """`python tools/state_diagram.py` writes it."""
    tool = runpy.run_path(str(ROOT / "tools" / "state_diagram.py"))
    page = (ROOT / "docs" / "design" / "consumer-groups.md").read_text()
    assert tool["with_diagram"](page) == page
