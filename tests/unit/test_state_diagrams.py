from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DIAGRAMS = runpy.run_path(str(ROOT / "tools" / "state_diagram.py"))["DIAGRAMS"]


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: diagram.name)
def test_diagram_of_the_document_is_that_of_the_table(diagram: Any) -> None:
    """`python tools/state_diagram.py` writes it."""
    page = diagram.page.read_text()
    assert diagram.put_into(page) == page
