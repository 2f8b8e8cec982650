"""The guide to SQL does what it says: its commands and programs run in their order, and answer as they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.guides import run_guide


@pytest.mark.timeout(240)  # fifteen programs, one after the other
def test_every_block_of_the_guide_runs(tmp_path: Path) -> None:
    said = run_guide("sql.md", tmp_path)
    assert '"carrier": "UA", "flights": 2' in said
    assert '{"carrier": "UA", "delay": 18.0}' in said
    assert '"_corrupt": "not json"' in said
    assert "legs ('key',) carrier STRING, legs ARRAY<STRUCT<to: STRING>>" in said
    assert said.endswith('[{"count_star()": 0}]\n')
