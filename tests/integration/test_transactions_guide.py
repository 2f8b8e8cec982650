"""The guide of transactions runs as it stands there, and its example counts each record once, over crashes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from bus import Admin, Consumer, ConsumerRecord, NewTopic, Producer, TopicPartition
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.guides import DOCS, run_guide

OPTIONS = ("group.initial.rebalance.delay.ms=0", "transaction.state.log.num.partitions=2")
CONFIG = BrokerConfig(
    group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=2, transaction_state_log_num_partitions=2
)
IDLE_MS = 1_000


def test_guide_runs_as_it_stands(tmp_path: Path) -> None:
    said = run_guide("transactions.md", tmp_path, *(word for option in OPTIONS for word in ("--set", option)))
    assert "invoices-" in said
    assert "\n-1\n" in said, "a staged record has no offset"
    assert " invoiced\n" in said
    assert "('invoices', 4)" in said, "one by hand and three out of orders"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with running_broker(tmp_path / "root", config=CONFIG) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topics([NewTopic("orders", partitions=2), NewTopic("invoices", partitions=2)])
            for number in range(20):
                producer.send("orders", b"%d" % number, partition=number % 2)
        yield address


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = DOCS / "examples" / "exactly_once_by_transaction.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Crash(Exception):
    pass


def work_that_fails_once(at: int, fail: Callable[[], None]) -> Callable[[ConsumerRecord], bytes]:
    calls = iter(range(10_000))

    def work(record: ConsumerRecord) -> bytes:
        if next(calls) == at:
            fail()
        value: bytes = record.value
        return value

    return work


def invoices(address: str) -> list[int]:
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("invoices", number) for number in range(2)])
        found: list[int] = []
        while records := consumer.poll(IDLE_MS):
            found += [int(record.value) for record in records]
    return sorted(found)


def test_each_record_counts_once_over_a_crash(address: str, example: ModuleType) -> None:
    def crash() -> None:
        raise Crash

    with pytest.raises(Crash):
        example.process(address, "orders", "invoices", "invoicer-0", work_that_fails_once(7, crash), max_poll_records=5)
    done = example.process(address, "orders", "invoices", "invoicer-0", lambda record: record.value, max_poll_records=5)
    assert 0 < done < 20, "the first run has committed some"
    assert invoices(address) == list(range(20))


def test_what_an_operator_aborts_is_worked_on_again(address: str, example: ModuleType) -> None:
    def abort() -> None:
        with Admin(address) as admin:
            while not admin.list_transactions(["Ongoing"]):
                pass
            admin.abort_transaction("invoicer-0")

    work = work_that_fails_once(7, abort)
    done = example.process(address, "orders", "invoices", "invoicer-0", work, max_poll_records=5)
    assert done == 20
    assert invoices(address) == list(range(20))
