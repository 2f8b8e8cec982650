"""Jobs as a user runs them, in the process of the test, whose Spark session they take."""

from __future__ import annotations

import pytest

from bus.cli.main import cli


def run_job(name: str, *arguments: str) -> int:
    """Return the exit code of `bus jobs run`."""
    with pytest.raises(SystemExit) as ended:
        cli(["jobs", "run", name, *arguments], prog_name="bus")
    assert isinstance(ended.value.code, int)
    return ended.value.code
