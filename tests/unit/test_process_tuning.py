"""What a process of the bus asks of its system."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from bus import process_tuning

PROGRAM = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
from bus.process_tuning import tune_process
tune_process()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""


def test_broker_may_open_as_many_files_as_its_hard_limit_allows() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


@pytest.mark.parametrize(
    ("files_max", "listeners", "expected"),
    [(1_024, 2, 256), (20_000, 1, 18_000), (20_000, 3, 6_000), (1_048_576, 2, 20_000), (2, 4, 1)],
)
def test_connections_leave_open_files_to_commits_and_to_other_listeners(
    monkeypatch: pytest.MonkeyPatch, files_max: int, listeners: int, expected: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files_max, files_max))
    assert process_tuning.connections_max(listeners) == expected


def test_connections_are_bounded_where_open_files_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert process_tuning.connections_max(1) == process_tuning.CONNECTIONS_MAX
