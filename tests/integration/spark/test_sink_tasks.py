"""A task of the sink leaves in the log each row once, keys in order, whatever happens to it and to the broker.

Tasks run in the test's own process; Spark is not needed for what is proved here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import bus.sql
from bus import Admin, BusError, ErrorCode, NewTopic
from bus.client.producer.sender import Sender
from bus.records.arrow_batches import decode_arrow
from bus.spark.sink import stamped_writer, task
from bus.spark.sink.columns import SinkColumns
from bus.spark.sink.sink_options import Application, parse_sink_options
from bus.spark.sink.stamped_writer import task_identity
from bus.spark.sink.task import write_rows
from tests.support.broker_process import BrokerProcess, free_port
from tests.support.broker_thread import running_broker
from tests.support.fake_broker import Append, AppendThenRefuse, BreakStream, Cluster, FakeBroker, Refuse

Row = tuple[bytes | None, bytes]
QUICK = {"kafka.retry.backoff.ms": "1", "kafka.retry.backoff.max.ms": "5", "kafka.reconnect.backoff.ms": "10"}


@pytest.fixture(autouse=True)
def fresh_connections() -> Iterator[None]:
    yield
    for cluster in stamped_writer._clusters.values():
        cluster.close()
    stamped_writer._clusters.clear()
    stamped_writer._producer_ids.clear()


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.cluster.create("t", 3)
        yield broker


def batches_of(rows: list[Row], batch_rows: int = 50) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), batch_rows):
        keys, values = zip(*rows[start : start + batch_rows], strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), pa.array(values)], names=["key", "value"])


def run_task(address: str, rows: list[Row], *, batch: int = 0, number: int = 0, **options: str) -> int:
    parsed = parse_sink_options({"bus.bootstrap.servers": address, "topic": "t", **QUICK, **options}, is_stream=True)
    columns = SinkColumns("t", ("key", "value"), False)
    return write_rows(batches_of(rows), columns, parsed, task_identity(Application("query", batch), number))


def keyed(count: int, keys: int = 20) -> list[Row]:
    """The values of a key grow."""
    return [(b"key-%d" % (number * 7 % keys), b"%06d" % number) for number in range(count)]


def logged(broker: FakeBroker) -> list[list[Row]]:
    found: list[list[Row]] = []
    for partition in broker.cluster.topics["t"].partitions:
        columns = [decode_arrow(batch.arrow).to_pydict() for batch in partition.batches]
        found.append([row for one in columns for row in zip(one["key"], one["value"], strict=True)])
    return found


def in_tables(root: Path) -> list[list[Row]]:
    with bus.sql.connect(str(root)) as connection:
        found = connection.sql("SELECT partition, key, value FROM t ORDER BY partition, offset").fetchall()
    return [[(key.encode(), value.encode()) for part, key, value in found if part == number] for number in range(3)]


def check_logged(found: list[list[Row]], expected: list[Row]) -> None:
    """Each row once, and the rows of a key in their order, in one partition."""
    assert sorted(map(str, (row for rows in found for row in rows))) == sorted(map(str, expected))
    for key in {key for key, _ in expected}:
        homes = [[value for other, value in rows if other == key] for rows in found]
        homes = [home for home in homes if home]
        assert homes == [[value for other, value in expected if other == key]], f"{key!r} is not in order"


# ---------------------------------------------------------------- faults on the way


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("order", ["key", "rows"])
def test_refusals_lost_answers_and_broken_streams_cost_nothing_but_time(
    broker: FakeBroker, seed: int, order: str
) -> None:
    chance = random.Random(seed)
    faults = [
        Append(),
        Append(),
        Refuse(ErrorCode.KAFKA_STORAGE_ERROR),
        Refuse(ErrorCode.THROTTLING_QUOTA_EXCEEDED),
        AppendThenRefuse(),
        BreakStream(is_appended=True),
        BreakStream(is_appended=False),
    ]
    broker.produce_script.extend(chance.choice(faults) for _ in range(40))
    rows = keyed(600)
    options = {"bus.order": order, "kafka.max.request.size": "1024"}
    assert run_task(broker.address, rows, **options) == 600
    check_logged(logged(broker), rows)


def test_task_that_runs_again_is_the_same_producer_with_the_same_numbers(broker: FakeBroker) -> None:
    rows = keyed(300)
    broker.produce_script.extend([Append(), Append(), Append(), Refuse(ErrorCode.INVALID_RECORD)])
    options = {"kafka.max.request.size": "1024"}
    with pytest.raises(BusError, match=r"INVALID_RECORD: t-[012]: as the test wants it"):
        run_task(broker.address, rows, batch=32_005, **options)
    assert any(logged(broker)), "a part of it is in the log"
    run_task(broker.address, rows, batch=32_005, **options)
    run_task(broker.address, rows, batch=32_005, **options)
    check_logged(logged(broker), rows)
    assert list(broker.cluster.names) == ["spark.query.0.1"]
    stamps = {(data.producer_id, data.producer_epoch) for sent in broker.produce_requests for data in sent.partitions}
    assert stamps == {(broker.cluster.names["spark.query.0.1"].id, 5)}


def test_other_tasks_and_batches_never_take_each_other_for_repeats(broker: FakeBroker) -> None:
    for batch in (0, 1):
        for number in (0, 1):
            run_task(broker.address, [(b"k", b"%d" % (batch * 2 + number))], batch=batch, number=number)
    check_logged(logged(broker), [(b"k", b"%d" % number) for number in range(4)])


def test_batch_before_the_last_one_is_refused_with_what_it_means(broker: FakeBroker) -> None:
    run_task(broker.address, keyed(10, keys=1), batch=7)
    with pytest.raises(BusError) as refused:
        run_task(broker.address, keyed(10, keys=1), batch=6)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert "this is batch 6 of spark.query.0.0, and a later one is in the log" in refused.value.message
    assert "its checkpoint went back" in refused.value.message


def test_partition_that_moves_is_followed(broker: FakeBroker) -> None:
    rows = keyed(100)
    run_task(broker.address, rows[:50])
    with FakeBroker(broker.cluster, 1) as other:
        for partition in range(3):
            broker.cluster.move("t", partition, 1)
        broker.produce_script.extend([Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)] * 3)
        run_task(broker.address, rows[50:], batch=1)
        assert other.produce_requests
    check_logged(logged(broker), rows)


def test_broker_that_says_nothing_is_given_up_and_asked_again(broker: FakeBroker) -> None:
    broker.gate.clear()
    asked = 0

    def open_the_gate() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:  # once at the beginning, once after the silence
            broker.gate.set()

    broker.on_metadata = open_the_gate
    rows = keyed(10)
    run_task(broker.address, rows, **{"kafka.request.timeout.ms": "100"})
    assert asked >= 2
    check_logged(logged(broker), rows)


def test_broker_that_is_not_there_is_waited_for_as_long_as_delivery_may_take() -> None:
    address = f"127.0.0.1:{free_port()}"
    options = {"kafka.delivery.timeout.ms": "300", "kafka.request.timeout.ms": "100"}
    with pytest.raises(BusError, match=f"no broker listens at {address}"):
        run_task(address, keyed(1), **options)
    cluster = Cluster()
    cluster.create("t", 3)
    with FakeBroker(cluster, address=address) as broker:
        run_task(address, keyed(1), **options)
        check_logged(logged(broker), keyed(1))


def test_what_is_not_acknowledged_is_bounded(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    take_in = Sender.take_in

    def watch(self: Any, topic: str, chunks: Any, now_ms: float) -> None:
        nonlocal most
        most = max(most, self._pool.total_bytes - self._pool.available_bytes)
        take_in(self, topic, chunks, now_ms)

    monkeypatch.setattr(Sender, "take_in", watch)
    options = {"kafka.buffer.memory": "8192", "kafka.max.request.size": "1024", "bus.order": "rows"}
    run_task(broker.address, keyed(3_000), **options)
    assert 8_192 - 2_048 < most < 8_192 + 2_048
    check_logged(logged(broker), keyed(3_000))


def test_topic_that_is_not_there_is_refused_at_once(broker: FakeBroker) -> None:
    del broker.cluster.topics["t"]
    with pytest.raises(BusError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        run_task(broker.address, keyed(1))


def test_topic_that_was_made_anew_gets_no_half_of_a_batch_and_the_next_run_knows_it(broker: FakeBroker) -> None:
    run_task(broker.address, keyed(10))
    broker.cluster.create("t", 3)
    with pytest.raises(BusError, match="INCONSISTENT_TOPIC_ID"):
        run_task(broker.address, keyed(10), batch=1)
    run_task(broker.address, keyed(10), batch=1)
    check_logged(logged(broker), keyed(10))


def test_task_without_rows_asks_nobody() -> None:
    assert run_task("127.0.0.1:1", []) == 0


# ---------------------------------------------------------------- rows in another order


def another_order(rows: list[Row], chance: random.Random) -> list[Row]:
    """Another order, as a shuffle might give it: the order within each key stays."""
    keys = [key for key, _ in rows]
    chance.shuffle(keys)
    queues = {key: iter([value for other, value in rows if other == key]) for key in set(keys)}
    return [(key, next(queues[key])) for key in keys]


@pytest.mark.parametrize("memory_bytes", [2**40, 4_000])
def test_run_that_sees_its_rows_in_another_order_appends_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_bytes: int
) -> None:
    monkeypatch.setattr(task, "_SORT_MEMORY_BYTES", memory_bytes)
    chance = random.Random(11)
    rows = keyed(2_000, keys=150)
    options = {"kafka.max.request.size": "1500"}
    with running_broker(tmp_path / "root") as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin:
            admin.create_topics([NewTopic("t", partitions=3)])
        send = stamped_writer.StampedWriter.send

        left = 0

        def send_or_end(*part: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt  # as a worker that is killed in the middle
            send(*part)

        monkeypatch.setattr(stamped_writer.StampedWriter, "send", send_or_end)
        for left in (5, 17, 31):  # noqa: B007  # counted down while the task sends
            with pytest.raises(KeyboardInterrupt):
                run_task(address, another_order(rows, chance), **options)
        monkeypatch.setattr(stamped_writer.StampedWriter, "send", send)
        for _ in range(2):
            assert run_task(address, another_order(rows, chance), **options) == 2_000
    check_logged(in_tables(tmp_path / "root"), rows)


def test_by_content_rows_without_keys_may_come_in_any_order(broker: FakeBroker) -> None:
    chance = random.Random(3)
    rows: list[Row] = [(None, b"%d" % (number % 70)) for number in range(400)]
    for _ in range(3):
        chance.shuffle(rows)
        run_task(broker.address, rows, **{"bus.order": "content", "kafka.max.request.size": "1024"})
    found = [row for partition in logged(broker) for row in partition]
    assert sorted(map(str, found)) == sorted(map(str, rows))
    assert len([rows for rows in logged(broker) if rows]) == 3


def test_rows_without_keys_keep_their_order_beside_those_that_have_one(broker: FakeBroker) -> None:
    keyless: list[Row] = [(None, b"%06d" % number) for number in range(200)]
    mixed = [row for pair in zip(keyless, keyed(200), strict=True) for row in pair]
    run_task(broker.address, mixed)
    check_logged(logged(broker), mixed)


# ---------------------------------------------------------------- a broker that is killed


def test_broker_killed_in_the_middle_of_a_task_and_between_its_runs(tmp_path: Path) -> None:
    rows = keyed(4_000, keys=100)
    with BrokerProcess(tmp_path / "root") as broker:
        with Admin(broker.address) as admin:
            admin.create_topics([NewTopic("t", partitions=3)])

        def seen() -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(batches_of(rows)):
                if number == 50:
                    broker.kill()
                    broker.start()
                yield batch

        options = parse_sink_options(
            {
                "bus.bootstrap.servers": broker.address,
                "topic": "t",
                "bus.order": "rows",
                **QUICK,
                "kafka.max.request.size": "1500",
            },
            is_stream=True,
        )
        columns, identity = SinkColumns("t", ("key", "value"), False), task_identity(Application("query", 3), 0)
        assert write_rows(seen(), columns, options, identity) == 4_000
        broker.kill()
        broker.start()
        assert write_rows(batches_of(rows), columns, options, identity) == 4_000
    check_logged(in_tables(tmp_path / "root"), rows)
