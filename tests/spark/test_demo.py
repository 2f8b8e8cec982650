"""The demo as its users run it; it checks its own claims and ends with status 1 if one is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_demo_runs_through_and_leaves_only_its_data(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bus.demo"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "count at those versions: 336,776, the number acknowledged" in done.stdout
    assert "the same question, distributed: the same answer" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["bus-demo-data"]
