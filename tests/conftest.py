"""Rules for every test: none fails because the machine is busy, or because of how the tests were started.

Hypothesis takes an example that took long, or that was long in the making, for a fault of the test. Its examples follow
from the test's code, so that a run of the tests has the same outcome as the one before. The profile `quick`, that of
`make check`, plays the first quarter of them; `--hypothesis-profile=explore --timeout=0` draws others, and more. A test
that needs more or fewer examples than others takes a multiple of what the profile says. Each test has a timeout of its
own, and one that starts processes has a longer one. A shell that starts the tests in the background has them, and the
programs that they start, ignore Ctrl-C, which some of these are tested for. A test writes below its tmp_path only: a
file that a run leaves in the checkout fails the run. That folder is in memory where there is room, and is kept if the
test has failed (`-o tmp_path_retention_policy=all` keeps each).

In several processes (`pytest -n 2 --dist loadfile`) each file is run by one of them, and what needs Spark by the first
for as long as the others have other files to run: a session takes seconds to start and a gigabyte of memory.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from bus.platform.reentry import drain, is_inside

settings.register_profile("any-machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("any-machine"), max_examples=25)
settings.register_profile("explore", settings.get_profile("any-machine"), derandomize=False, max_examples=1_000)
settings.load_profile("any-machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


_MEMORY = "/dev/shm"
_MEMORY_BYTES_MIN = 2 << 30  # of which all tests together use a tenth


def _has_room(folder: str) -> bool:
    try:
        runs_programs = not os.statvfs(folder).f_flag & os.ST_NOEXEC  # some tests write one of their own
        return runs_programs and shutil.disk_usage(folder).free >= _MEMORY_BYTES_MIN
    except OSError:
        return False


# A commit syncs several files: on a disk, tests would wait for that more than for anything else. What a power failure
# leaves of files that were not synced is tested with a file system that knows.
if _has_room(_MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)


class _Witness(logging.Handler):
    """A program's handler may call the client whose line it gets, so none comes while a lock of a client is held."""

    def __init__(self) -> None:
        super().__init__()
        self.under_locks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if is_inside():
            self.under_locks.append(record.getMessage())


_witness = _Witness()
logging.getLogger().addHandler(_witness)


@pytest.fixture(autouse=True)
def no_line_under_a_lock() -> Iterator[None]:
    yield
    found, _witness.under_locks = _witness.under_locks, []
    assert not found, "a handler was called under a lock of a client"


class _AllLines(pytest.LogCaptureFixture):
    """Lines of a client wait to be read: under a lock, or on a thread of its own, it logs on another thread."""

    @property
    def records(self) -> list[logging.LogRecord]:
        drain()
        return super().records

    @property
    def text(self) -> str:
        drain()
        return super().text


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.__class__ = _AllLines
    return caplog


_files_before = pytest.StashKey[set[str]]()


def _untracked_files(checkout: Path) -> set[str]:
    """None outside of a checkout of git, and where git ignores them."""
    command = ["git", "ls-files", "--others", "--exclude-standard"]
    try:
        return set(
            subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False).stdout.splitlines()
        )
    except FileNotFoundError:
        return set()


def _is_process_of_xdist(session: pytest.Session) -> bool:
    return hasattr(session.config, "workerinput")


def pytest_sessionstart(session: pytest.Session) -> None:
    if not _is_process_of_xdist(session):
        session.stash[_files_before] = _untracked_files(session.config.rootpath)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _is_process_of_xdist(session):
        return
    left = _untracked_files(session.config.rootpath) - session.stash[_files_before]
    if left:
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        print(f"\nexpected no new file in the checkout after the tests, found: {', '.join(sorted(left))}")


_PROCESSES = {"subprocess", "BrokerProcess", "MemberProcesses"}  # names of what starts them
_PROCESSES_TIMEOUT_S = 240


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of processes longer: on a busy machine each takes a while to start, and its own time-out, of 100
    seconds, comes first and says what it waited for."""
    for item in items:
        if _PROCESSES & vars(getattr(item, "module", object)).keys() and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_PROCESSES_TIMEOUT_S))


_OF_SPARK = ("tests/spark/", "tests/end_to_end/test_spark_exactly_once.py")


class _SparkApart(LoadFileScheduling):
    """Hands out files in the order of the command line: those of Spark to the first process, since a session takes
    seconds to start, the others to the rest. A process that has no file of its kind left takes one of the other."""

    _spark_process: object = None

    def _assign_work_unit(self, node: Any) -> None:
        self._spark_process = self._spark_process or node
        is_of_kind = (file for file in self.workqueue if file.startswith(_OF_SPARK) is (node is self._spark_process))
        self.workqueue.move_to_end(next(is_of_kind, next(iter(self.workqueue))), last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return _SparkApart(config, log)
