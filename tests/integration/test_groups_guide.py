"""The commands and programs of the guide to groups, run in their order as they stand there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.guides import run_guide


@pytest.mark.timeout(120)
def test_every_block_of_the_guide_runs(tmp_path: Path) -> None:
    text = run_guide("groups.md", tmp_path, "--set", "group.initial.rebalance.delay.ms=0")
    assert '"committed_offset": 3' in text, "the history has the commit of the first run"
    assert "deleted group billing-2" in text
    assert text.rstrip().endswith('"members": 0}]')
