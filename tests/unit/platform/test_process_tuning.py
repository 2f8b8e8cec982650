"""Requests of a bus process to its system."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import subprocess
import sys

import pytest

from bus.platform import process_tuning
from bus.security.stranger_rations import RationSizes
from tests.support.virtual_time import run_virtually

PROGRAM = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
from bus.platform.process_tuning import tune_process
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


@pytest.mark.parametrize("files_max", [64, 256, 1_024, 4_096, 20_000, 1_048_576])
@pytest.mark.parametrize("listeners", range(1, 9))
def test_connections_of_all_listeners_and_what_watches_strangers_leave_a_quarter_of_few_open_files(
    monkeypatch: pytest.MonkeyPatch, files_max: int, listeners: int
) -> None:
    """A connection whose caller is not known takes two files. Strangers are counted over all listeners."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files_max, files_max))
    each = process_tuning.connections_max(listeners)
    strangers = RationSizes().within(each).connections_max
    assert each * listeners + strangers <= files_max - min(files_max // 4, 900)


def test_connections_are_bounded_where_open_files_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert process_tuning.connections_max(1) == process_tuning.CONNECTIONS_MAX


GIVES_BACK = """
from bus.platform.process_tuning import free_bytes, give_back_free_memory, tune_process
tune_process()
blocks = [bytearray(1 << 20) for _ in range(200)]
last = bytearray(1 << 20)  # what is above free memory keeps the allocator from giving it back by itself
blocks.clear()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
assert free_bytes() >= 150 << 20
before = resident()
give_back_free_memory()
assert before - resident() > 100 << 20, (before, resident())
"""


@pytest.mark.skipif(process_tuning.free_bytes() == 0, reason="this libc does not say what is free")
def test_free_memory_goes_back_to_the_system() -> None:
    subprocess.run([sys.executable, "-c", GIVES_BACK], check=True)


@pytest.mark.parametrize(
    ("used_s", "free", "given_back"), [(0.1, 1 << 30, 3), (4.0, 1 << 30, 0), (0.1, 1 << 20, 0)], ids=str
)
def test_memory_is_given_back_while_the_process_is_idle_and_has_some(used_s: float, free: int, given_back: int) -> None:
    calls: list[int] = []
    processor = itertools.count(0.0, used_s)

    async def give_back() -> None:
        calls.append(1)

    async def scenario() -> None:
        watch = process_tuning.give_back_memory_when_idle(lambda: free, give_back, lambda: next(processor))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(watch, 16)

    run_virtually(scenario())
    assert len(calls) == given_back
