"""The driver writes a batch with bus.transactional at its end: all of it, once, whatever becomes of its runs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bus import Admin, BusError, Consumer, ErrorCode, NewTopic, Producer
from bus.settings.broker import BrokerConfig
from bus.spark.sink import transactional_batch as transactions
from bus.spark.sink.columns import RowRefused, SinkColumns
from bus.spark.sink.sink_options import Application
from bus.spark.sink.stamped_writer import task_identity
from bus.spark.sink.transactional_batch import collect_rows, commit_parts
from tests.support.broker_thread import running_broker
from tests.support.crashing_sink import PLACES, STEPS, options_for, parts_of
from tests.support.member_processes import REPOSITORY


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    config = BrokerConfig(
        group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=2, transaction_state_log_num_partitions=2
    )
    with running_broker(tmp_path / "root", config=config) as broker:
        at = f"127.0.0.1:{broker.port}"
        with Admin(at) as admin:
            admin.create_topics([NewTopic("invoices", partitions=2), NewTopic("audit", partitions=2)])
        yield at


def rows(address: str) -> list[list[str]]:
    """The values in each place, in their order."""
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign(PLACES)
        count = sum(consumer.end_offsets(PLACES).values())
        found: list[Any] = []
        while len(found) < count:
            found += consumer.poll(20_000)
    of_place = [[each for each in found if (each.topic, each.partition) == tuple(place)] for place in PLACES]
    return [[each.value.decode() for each in each_place] for each_place in of_place]


def commit(address: str, version: int, run: str = "here", name: str = "nightly") -> bool:
    return commit_parts(parts_of(version, run), options_for(address), Application(name, version))


def test_version_is_written_once_though_its_rows_are_others_when_it_runs_again(address: str) -> None:
    assert commit(address, 4, "first")
    assert not commit(address, 4, "second")
    assert commit(address, 5, "third")
    assert commit(address, 4, "other", name="hourly"), "another application has its own numbers"
    assert rows(address) == [["4 first", "5 third", "4 other"]] * 4


def test_version_below_the_last_one_is_refused(address: str) -> None:
    commit(address, 4)
    with pytest.raises(BusError, match="expected a batch above 4, the last one that is written, found 3") as raised:
        commit(address, 3)
    assert raised.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert rows(address) == [["4 here"]] * 4


def test_task_gives_its_rows_to_the_driver_in_their_order_and_sends_none(address: str) -> None:
    numbers = pa.array([b"%d" % number for number in range(100)])
    batches = [
        pa.record_batch({"value": numbers, "partition": pa.array([number % 2 for number in range(100)], pa.int32())})
    ] * 2
    columns = SinkColumns("invoices", ("value",), has_partition=True)
    identity = task_identity(Application("nightly", 0), 0)
    count, parts = collect_rows(iter(batches), columns, options_for(address), identity)
    assert (count, [part.partition.partition for part in parts]) == (200, [0, 1])
    assert rows(address) == [[]] * 4
    commit_parts(parts, options_for(address), Application("nightly", 0))
    assert rows(address)[0] == [str(number) for number in range(0, 100, 2)] * 2


def test_task_with_more_rows_than_the_driver_takes_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_TASK_BYTES_MAX", 1 << 20)
    batches = (pa.record_batch({"value": pa.array([b"x" * 1_000] * 100)}) for _ in range(100))
    columns = SinkColumns("invoices", ("value",), has_partition=False)
    with pytest.raises(RowRefused, match="at most 1 MiB of rows in a task"):
        collect_rows(batches, columns, options_for(address), task_identity(Application("nightly", 0), 0))
    assert next(batches, None) is not None, "it stops as soon as it is too much"


def test_earlier_run_that_is_still_there_is_fenced_and_writes_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step of its run another one begins, and ends: as when a driver was thought dead."""
    for version, name in enumerate(["begin_transaction", "send_batch", "commit_transaction"]):
        with monkeypatch.context() as patch:

            class Overtaken(Producer): ...

            def overtake(producer: Producer, *args: Any, name: str = name, version: int = version) -> Any:
                if transactions.Producer is Overtaken:
                    patch.setattr(transactions, "Producer", Producer)
                    assert commit(address, version, "younger")
                return getattr(Producer, name)(producer, *args)

            setattr(Overtaken, name, overtake)
            patch.setattr(transactions, "Producer", Overtaken)
            with pytest.raises(BusError) as raised:
                commit(address, version, "older")
            assert raised.value.code is ErrorCode.PRODUCER_FENCED
    assert rows(address) == [["0 younger", "1 younger", "2 younger"]] * 4


def test_driver_killed_at_any_step_leaves_all_or_nothing_and_the_next_run_writes_once(address: str) -> None:
    for version, step in enumerate(STEPS):
        command = [sys.executable, "-m", "tests.support.crashing_sink", address, step, str(version)]
        ended = subprocess.run(command, cwd=REPOSITORY, timeout=100, capture_output=True, text=True)
        assert ended.returncode == -signal.SIGKILL, f"{step}: {ended.stderr}"
        assert commit(address, version) == (step != "after:commit_transaction")
        written = f"{version} {step}" if step == "after:commit_transaction" else f"{version} here"
        assert [each[-1] for each in rows(address)] == [written] * 4
    assert [len(each) for each in rows(address)] == [len(STEPS)] * 4
