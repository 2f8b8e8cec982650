"""Transactional ids on a root of the version before this one, whose numbers began at clocks that were wrong: here a
commit writes its rows or fails aloud, and what hung there is free."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from bus import Admin, BusError, ErrorCode, NewTopic, Producer, TopicPartition
from bus.cli.main import cli
from bus.cluster_metadata.cluster_state import LEVEL_MAX
from bus.platform.system_clock import SystemClock
from bus.settings.broker import BrokerConfig
from bus.storage_delta.log.listing import partition_folder
from tests.support.broker_process import BrokerProcess
from tests.support.broker_thread import running_broker
from tests.support.earlier_version import LEVEL, unpack_version

DAY_MS = 86_400_000
HALF_AN_HOUR_MS = 1_800_000  # a clock that is further behind refuses what clients send
EXPIRATION_MS = 3_000
SHORT_MS = 2_000  # for a call of which it is known that it will not be answered
WAIT_S = 60.0

_A_DAY_AHEAD = f"""
from bus.system_clock import SystemClock
true_time = SystemClock.now_ms
SystemClock.now_ms = lambda clock: true_time(clock) + {DAY_MS}
"""
_CARRIES_OUT_NO_DECISION = """
import asyncio
from bus.runtime.coordinators.transaction_driver import TransactionDriver
finish = TransactionDriver._finish
async def hang(driver, work, notice):
    if notice.transactional_id.startswith("decided"):
        await asyncio.Event().wait()
    return await finish(driver, work, notice)
TransactionDriver._finish = hang
"""


class SettableClock(SystemClock):
    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class Rows:
    """The rows that the two partitions of `t` must have: each value whose commit was answered, once in each partition
    that it was sent to, and nothing of a commit that has failed."""

    def __init__(self, root: Path) -> None:
        self._folders = [root / partition_folder(TopicPartition("t", number)) for number in range(2)]
        self.answered: list[Counter[str]] = [Counter() for _ in self._folders]

    def note(self, value: str, partitions: int) -> None:
        for answered in self.answered[:partitions]:
            answered[value] += 1

    def find(self) -> list[Counter[str]]:
        tables = [DeltaTable(str(folder)).to_pyarrow_table(columns=["value"]) for folder in self._folders]
        return [Counter(value.decode() for value in table.column("value").to_pylist()) for table in tables]


def commit(producer: Producer, value: str, rows: Rows | None, partitions: int = 2) -> None:
    """`rows`: where it is noted, unless it fails."""
    producer.begin_transaction()
    for partition in range(partitions):
        producer.send("t", value.encode(), partition=partition)
    producer.commit_transaction()
    if rows is not None:
        rows.note(value, partitions)


def commit_before_expiry(address: str, name: str, rows: Rows, commits: dict[str, int]) -> None:
    """Commit each of the values, to so many partitions. Where the id has expired on the way, another instance begins
    again."""
    is_over = False
    while not is_over:
        try:
            with instance(address, name) as producer:
                for value, partitions in commits.items():
                    commit(producer, value, rows, partitions)
            is_over = True
        except BusError as error:
            if error.code is not ErrorCode.INVALID_PRODUCER_ID_MAPPING:
                raise


def init_in_the_end(producer: Producer) -> None:
    """Initialise, however many times the patience of the producer is too short for it."""
    while True:
        try:
            return producer.init_transactions()
        except BusError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                raise


@contextmanager
def instance(
    address: str,
    name: str,
    *,
    patience_ms: int = 60_000,
    init: Callable[[Producer], None] = Producer.init_transactions,
) -> Iterator[Producer]:
    producer = Producer(address, transactional_id=name, max_block_ms=patience_ms, linger_ms=0)
    try:
        init(producer)
        yield producer
    finally:
        producer.close(timeout=0)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def wait_for_expiry(admin: Admin, *names: str) -> None:
    """Wait until the ids have expired. They must have been used since their coordinator was loaded, which keeps all
    others for an hour."""
    wait_until(lambda: not {one.transactional_id for one in admin.list_transactions()}.intersection(names))


# ---------------------------------------------------------------- what the version before leaves


NAMES = ("gone", "behind", "silent", "stuck", "decided")


def leave_marks_of_tomorrow(root: Path, code: Path, rows: Rows) -> None:
    """Commit under each id while the clock is a day ahead, and wait until the ids have expired."""
    expiration = f"--set=transactional.id.expiration.ms={EXPIRATION_MS}"
    broker = BrokerProcess(root, "--set=transaction.state.log.num.partitions=1", expiration)
    broker.run_version(code, prelude=_A_DAY_AHEAD)
    with broker, Admin(broker.address) as admin:
        admin.create_topics([NewTopic("t", 2)])
        for name in NAMES:
            commit_before_expiry(broker.address, name, rows, {f"{name}, a day ahead": 2})
        wait_for_expiry(admin, *NAMES)
        assert broker.terminate() == 0


def meet_marks_of_tomorrow(root: Path, code: Path, rows: Rows) -> None:
    """Commit under the same ids by the right clock, and expect the faults of the version before: an answered commit
    without rows, and commits that hang."""
    broker = BrokerProcess(root)
    broker.run_version(code, prelude=_CARRIES_OUT_NO_DECISION)
    with broker:
        with instance(broker.address, "behind"):
            pass  # its numbers begin below the marks
        with instance(broker.address, "silent") as producer:
            commit(producer, "silent, without rows", None)
        assert rows.find() == rows.answered
        for name, partitions in (("stuck", 1), ("decided", 2), ("decided, in order", 2)):
            with instance(broker.address, name, patience_ms=SHORT_MS, init=init_in_the_end) as producer:
                code = error_of_commits(producer, f"{name}, without an answer", partitions)
                assert code is ErrorCode.REQUEST_TIMED_OUT, name
        broker.kill()


def error_of_commits(producer: Producer, value: str, partitions: int) -> ErrorCode | None:
    """Return the error of the first commit that fails; None if none does."""
    try:
        for number in range(3):
            commit(producer, f"{value}, {number}", None, partitions)
    except BusError as error:
        return error.code
    return None


# ---------------------------------------------------------------- what this version makes of it


@pytest.mark.timeout(600)
def test_ids_with_numbers_of_wrong_clocks_commit_their_rows_or_fail_aloud_after_an_upgrade(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, code = tmp_path / "root", unpack_version(tmp_path)
    rows = Rows(root)
    leave_marks_of_tomorrow(root, code, rows)
    meet_marks_of_tomorrow(root, code, rows)
    with running_broker(root) as broker, Admin(address := f"127.0.0.1:{broker.port}") as admin:
        assert admin.describe_cluster().feature_level == LEVEL
        rows.note("decided, in order, without an answer, 0", 2)  # a decision of the version before holds
        wait_until(lambda: rows.find() == rows.answered)

        with instance(address, "gone") as producer:  # as brokers of the version before, from the clock
            fail_aloud_and_commit(producer, "gone", rows)
        admin.update_features({"bus.version": LEVEL_MAX})
        for name in ("behind", "silent", "stuck"):
            with instance(address, name) as producer:
                fail_aloud_and_commit(producer, name, rows)

        with pytest.raises(BusError), instance(address, "decided", patience_ms=SHORT_MS):
            pass
        wait_until(lambda: "to give its rows up: bus transactions fence" in caplog.text)
        admin.fence_producers(["decided"])
        with instance(address, "decided") as producer:
            fail_aloud_and_commit(producer, "decided", rows)
    check_clock_that_jumps(root, rows)
    verified = CliRunner().invoke(cli, ["log", "verify", "--all"], env={"BUS_ROOT": str(root)})
    assert verified.exit_code == 0, verified.output


def fail_aloud_and_commit(producer: Producer, name: str, rows: Rows) -> None:
    """The first one meets a mark that is above it, the next one is above that."""
    with pytest.raises(BusError, match="of an earlier life of the id") as refused:
        commit(producer, f"{name}, refused", rows)
    assert refused.value.code is ErrorCode.TRANSACTION_ABORTABLE
    producer.abort_transaction()
    for number in range(3):
        commit(producer, f"{name}, commit {number}", rows, partitions=1 + number % 2)
        assert rows.find() == rows.answered


def check_clock_that_jumps(root: Path, rows: Rows) -> None:
    """On a cluster that is upgraded: no clock has a part in numbers."""
    clock = SettableClock()
    config = BrokerConfig(transactional_id_expiration_ms=EXPIRATION_MS)
    with running_broker(root, config=config, clock=clock) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        for ahead_ms in (DAY_MS, 0, -HALF_AN_HOUR_MS):
            clock.ahead_ms = ahead_ms
            for name in ("jumping", "jumping too"):
                values = {f"{name}, {ahead_ms} ms ahead": 2, f"{name}, {ahead_ms} ms ahead, in one phase": 1}
                commit_before_expiry(f"127.0.0.1:{broker.port}", name, rows, values)
            assert rows.find() == rows.answered
            wait_for_expiry(admin, "jumping", "jumping too")
