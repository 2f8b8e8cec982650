"""The producer against a broker that fails as scripted: what reaches the log, in which order, what the user hears."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import grpc
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bus import BusError, ErrorCode, Producer, ProducerRecord, RecordMetadata
from bus.records.arrow_batches import decode_arrow
from tests.support.broker_process import free_port
from tests.support.fake_broker import Append, AppendThenRefuse, BreakStream, Cluster, FakeBroker, Refuse
from tests.support.murmur2 import partition_of_key

QUICK: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 10}
WAIT_S = 20


def log_of(broker: FakeBroker, topic: str, partition: int = 0) -> list[bytes | None]:
    return broker.cluster.topics[topic].partitions[partition].values()


def records_of(broker: FakeBroker, topic: str, partition: int = 0) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of each record."""
    found: list[tuple[bytes | None, bytes | None]] = []
    for batch in broker.cluster.topics[topic].partitions[partition].batches:
        columns = decode_arrow(batch.arrow).to_pydict()
        values = columns["value"]
        found += zip(columns.get("key", [None] * len(values)), values, strict=True)
    return found


def wait_for_requests(broker: FakeBroker, count: int) -> None:
    with broker.cluster.changed:
        assert broker.cluster.changed.wait_for(lambda: len(broker.produce_requests) >= count, WAIT_S)


def batch_of(count: int, size: int = 10) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([b"%0*d" % (size, n) for n in range(count)])], names=["value"])


# ---------------------------------------------------------------- the ordinary


def test_acknowledged_record_names_its_offset_timestamp_and_version(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    with Producer(broker.address) as producer:
        producer.send("t", b"a", partition=1).result(WAIT_S)
        found = producer.send("t", b"b", key=b"k", headers=[("h", None)], partition=1, timestamp_ms=77).result(WAIT_S)
    assert (found.topic, found.partition, found.offset, found.timestamp_ms, found.version) == ("t", 1, 1, 77, 2)


@pytest.mark.parametrize(("acks", "offset", "version"), [("all", 0, 1), (1, 0, -1), (0, -1, -1)])
def test_acks_decide_what_is_known_of_the_record(broker: FakeBroker, acks: Any, offset: int, version: int) -> None:
    broker.cluster.create("t")
    with Producer(broker.address, acks=acks) as producer:
        found = producer.send("t", b"a").result(WAIT_S)
    assert (found.offset, found.version) == (offset, version)
    assert broker.produce_requests[0].acks == (-1 if acks == "all" else acks)


def test_keyed_batch_is_split_as_single_records_are_and_one_request_carries_it(broker: FakeBroker) -> None:
    broker.cluster.create("t", 4)
    keys = [b"key-%d" % (number % 9) for number in range(200)]
    values = [b"%d" % number for number in range(200)]
    with Producer(broker.address) as producer:
        found = producer.send_batch("t", pa.table({"value": values, "key": keys})).result(WAIT_S)
        placed = producer.send("t", b"single", key=keys[0]).result(WAIT_S)
    assert len(broker.produce_requests) == 2
    assert sum(run.record_count for run in found) == 200
    assert placed.partition == partition_of_key(keys[0], 4)
    for partition in range(4):
        mine = [value for value, key in zip(values, keys, strict=True) if partition_of_key(key, 4) == partition]
        assert [value for value in log_of(broker, "t", partition) if value != b"single"] == mine


def test_batch_larger_than_a_request_is_sent_in_several_in_order(broker: FakeBroker) -> None:
    broker.cluster.create("t", 3)
    with Producer(broker.address, max_request_size=4_096) as producer:
        found = producer.send_batch("t", batch_of(2_000, size=20)).result(WAIT_S)
    assert max(request.ByteSize() for request in broker.produce_requests) <= 4_096 + 200
    assert {run.partition for run in found} == {0}
    assert [run.base_offset for run in found] == sorted(run.base_offset for run in found)
    assert log_of(broker, "t") == [b"%020d" % number for number in range(2_000)]


def test_batch_larger_than_the_buffer_goes_through_it(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Producer(broker.address, max_request_size=2_048, buffer_memory=16_384) as producer:
        producer.send_batch("t", batch_of(5_000, size=20)).result(WAIT_S)
    assert log_of(broker, "t") == [b"%020d" % number for number in range(5_000)]


def test_table_in_pieces_and_slices_are_sent_whole(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    table = pa.concat_tables([pa.table({"value": [b"%d" % number]}) for number in range(50)]).slice(10, 30)
    with Producer(broker.address, compression_type="zstd") as producer:
        producer.send_batch("t", table).result(WAIT_S)
    assert log_of(broker, "t") == [b"%d" % number for number in range(10, 40)]


def test_empty_batch_is_done_and_sends_nothing(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Producer(broker.address) as producer:
        assert producer.send_batch("t", batch_of(5)[:0]).result(0) == []
    assert broker.produce_requests == []


def test_records_that_wait_for_the_window_share_a_request(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Producer(broker.address, linger_ms=0, max_in_flight_requests_per_connection=2) as producer:
        producer.send("t", b"first", timestamp_ms=0).result(WAIT_S)  # topic, identity and connection are known now
        broker.gate.clear()
        futures = [producer.send("t", b"%d" % number, timestamp_ms=number) for number in range(1, 100)]
        wait_for_requests(broker, 2)
        broker.gate.set()
        found = [future.result(WAIT_S) for future in futures]
    assert log_of(broker, "t")[1:] == [b"%d" % number for number in range(1, 100)]
    assert [metadata.offset for metadata in found] == list(range(1, 100))
    assert [metadata.timestamp_ms for metadata in found] == list(range(1, 100))
    assert len(broker.produce_requests) == 4, "the first, the two of the window, and one with all that waited"


def test_records_that_are_sent_in_one_breath_share_a_batch(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Producer(broker.address, linger_ms=60_000) as producer:
        futures = [producer.send("t", b"%d" % number) for number in range(50)]
        producer.flush(WAIT_S)
        assert [future.result(0).offset for future in futures] == list(range(50))
    assert len(broker.produce_requests) == 1


def test_lingering_record_leaves_without_anybody_asking(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Producer(broker.address, linger_ms=20) as producer:
        assert producer.send("t", b"a").result(WAIT_S).offset == 0


def test_partitions_of_one_leader_share_a_request(broker: FakeBroker) -> None:
    broker.cluster.create("t", 8)
    with Producer(broker.address, linger_ms=60_000) as producer:
        futures = [producer.send("t", b"%d" % number, partition=number) for number in range(8)]
        producer.flush(WAIT_S)
        assert [future.result(0).partition for future in futures] == list(range(8))
    assert [len(request.partitions) for request in broker.produce_requests] == [8]


def test_client_id_reaches_the_broker(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Producer(broker.address, client_id="billing-7") as producer:
        producer.send("t", b"a").result(WAIT_S)
    assert broker.client_ids == {"billing-7"}


def test_callback_runs_without_anybody_waiting(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    seen: list[int] = []
    with Producer(broker.address) as producer:
        producer.send("t", b"a").add_done_callback(lambda future: seen.append(future.result().offset))
    assert seen == [0], "close() came back before the record was acknowledged"


# ---------------------------------------------------------------- retries


@pytest.mark.parametrize("code", [code for code in ErrorCode if code.is_retriable])
def test_retriable_error_is_tried_again_until_it_works(broker: FakeBroker, code: ErrorCode) -> None:
    broker.cluster.create("t")
    broker.produce_script.extend([Refuse(code), Refuse(code)])
    with Producer(broker.address, **QUICK) as producer:
        assert producer.send("t", b"a").result(WAIT_S).offset == 0
    assert len(broker.produce_requests) == 3


def test_final_error_fails_the_record_at_once_with_the_brokers_words(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.produce_script.append(Refuse(ErrorCode.INVALID_TIMESTAMP, "expected a timestamp of today"))
    with Producer(broker.address, **QUICK) as producer:
        error = producer.send("t", b"a").exception(WAIT_S)
        assert producer.send("t", b"b").result(WAIT_S).offset == 0
    assert error is not None
    assert (error.name, error.retriable, error.message) == ("INVALID_TIMESTAMP", False, "expected a timestamp of today")


def test_order_is_kept_when_a_request_fails_with_others_behind_it(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.produce_script.extend([Append(), Refuse(ErrorCode.KAFKA_STORAGE_ERROR)])
    with Producer(broker.address, linger_ms=0, **QUICK) as producer:
        producer.send("t", b"0").result(WAIT_S)
        broker.gate.clear()
        futures = [producer.send("t", b"%d" % number) for number in range(1, 5)]
        wait_for_requests(broker, 2)
        broker.gate.set()
        assert [future.result(WAIT_S).offset for future in futures] == [1, 2, 3, 4]
    assert log_of(broker, "t") == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("is_appended", [True, False])
def test_broken_connection_neither_loses_nor_doubles_nor_reorders(broker: FakeBroker, is_appended: bool) -> None:
    broker.cluster.create("t")
    broker.produce_script.extend([Append(), Append(), BreakStream(is_appended)])
    with Producer(broker.address, **QUICK) as producer:
        futures = [producer.send_batch("t", batch_of(6)[number : number + 1]) for number in range(6)]
        assert [future.result(WAIT_S)[0].base_offset for future in futures] == list(range(6))
    assert log_of(broker, "t") == [b"%010d" % number for number in range(6)]


def test_unknown_outcome_is_settled_by_asking_again_and_written_once(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.produce_script.append(AppendThenRefuse())
    with Producer(broker.address, **QUICK) as producer:
        assert producer.send("t", b"a").result(WAIT_S).offset == 0
    assert log_of(broker, "t") == [b"a"]
    first, second = (request.partitions[0] for request in broker.produce_requests)
    assert first == second, "the very same bytes under the very same stamp"


def test_without_idempotence_an_unknown_outcome_may_write_twice_but_is_acknowledged(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.produce_script.append(AppendThenRefuse())
    with Producer(broker.address, enable_idempotence=False, **QUICK) as producer:
        assert producer.send("t", b"a").result(WAIT_S).offset == 1
    assert log_of(broker, "t") == [b"a", b"a"]
    assert not any(request.partitions[0].HasField("producer_id") for request in broker.produce_requests)
    assert "InitProducerId" not in broker.calls


def test_without_retries_an_unknown_outcome_is_reported_and_written_at_most_once(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.produce_script.append(AppendThenRefuse())
    with Producer(broker.address, retries=0) as producer:
        error = producer.send("t", b"a").exception(WAIT_S)
    assert error is not None
    assert error.code is ErrorCode.REQUEST_TIMED_OUT
    assert log_of(broker, "t") == [b"a"]


def test_record_that_comes_during_a_back_off_leaves_when_it_is_over(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.produce_script.append(Refuse(ErrorCode.KAFKA_STORAGE_ERROR))
    with Producer(broker.address, retries=0, retry_backoff_ms=50) as producer:
        assert producer.send("t", b"a").exception(WAIT_S) is not None
        assert producer.send("t", b"b").result(WAIT_S).offset == 0


def test_delivery_time_out_bounds_the_retries(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.produce_script.extend([Refuse(ErrorCode.KAFKA_STORAGE_ERROR, "disk full")] * 1_000)
    with Producer(broker.address, request_timeout_ms=500, delivery_timeout_ms=1_000, **QUICK) as producer:
        error = producer.send("t", b"a").exception(WAIT_S)
    assert error is not None
    assert error.code is ErrorCode.REQUEST_TIMED_OUT
    assert "delivery.timeout.ms" in error.message


def test_broker_that_does_not_answer_is_given_up_and_asked_again(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.gate.clear()
    with Producer(broker.address, request_timeout_ms=500, **QUICK) as producer:
        future = producer.send("t", b"a")
        wait_for_requests(broker, 2)  # the first one was never answered
        broker.gate.set()
        future.result(WAIT_S)


def test_request_that_the_server_cannot_read_fails_alone(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.produce_script.append(BreakStream(False, grpc.StatusCode.INVALID_ARGUMENT))
    with Producer(broker.address, **QUICK) as producer:
        first = producer.send_batch("t", pa.table({"value": [b"bad"]}))
        second = producer.send_batch("t", pa.table({"value": [b"good"]}))
        error = first.exception(WAIT_S)
        second.result(WAIT_S)
    assert error is not None
    assert error.code is ErrorCode.INVALID_REQUEST
    assert log_of(broker, "t") == [b"good"]


def test_bad_records_that_the_broker_names_fail_alone(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.produce_script.append(Refuse(ErrorCode.MESSAGE_TOO_LARGE, "some", {1: "one", 4: "four"}))
    with Producer(broker.address, linger_ms=60_000, **QUICK) as producer:
        futures = [producer.send("t", b"%d" % number, key=b"k%d" % number) for number in range(6)]
        producer.flush(WAIT_S)
        errors = [future.exception(0) for future in futures]
        offsets = [future.result(0).offset for future, error in zip(futures, errors, strict=True) if error is None]
    assert [error and (error.code, error.message) for error in errors] == [
        None,
        (ErrorCode.MESSAGE_TOO_LARGE, "one"),
        None,
        None,
        (ErrorCode.MESSAGE_TOO_LARGE, "four"),
        None,
    ]
    assert offsets == [0, 1, 2, 3]
    assert records_of(broker, "t") == [(b"k%d" % number, b"%d" % number) for number in (0, 2, 3, 5)]


def test_without_names_the_batches_that_shared_a_request_are_halved_until_the_bad_one_is_alone(
    broker: FakeBroker,
) -> None:
    broker.cluster.create("t")
    with Producer(broker.address, linger_ms=0, max_in_flight_requests_per_connection=1, **QUICK) as producer:
        producer.send("t", b"first").result(WAIT_S)
        broker.gate.clear()
        blocking = producer.send("t", b"blocking")
        wait_for_requests(broker, 2)
        futures = []
        for number in range(4):  # each is a batch of its own, and they wait for the window together
            futures.append(producer.send("t", b"%d" % number * 20_000))
        too_large = Refuse(ErrorCode.MESSAGE_TOO_LARGE)
        # All four; the first half; 0 alone; 1 alone; after that the rest goes through.
        broker.produce_script.extend([too_large, too_large, Append(), too_large])
        broker.gate.set()
        blocking.result(WAIT_S)
        errors = [future.exception(WAIT_S) for future in futures]
    assert [error and error.code for error in errors] == [None, ErrorCode.MESSAGE_TOO_LARGE, None, None]
    assert [(value or b"")[:1] for value in log_of(broker, "t")[2:]] == [b"0", b"2", b"3"]


# ---------------------------------------------------------------- identity


def stamps_of(broker: FakeBroker) -> list[tuple[int, int]]:
    """Epoch and first sequence of each share that arrived."""
    return [
        (share.producer_epoch, share.base_sequence)
        for request in broker.produce_requests
        for share in request.partitions
    ]


def test_records_wait_for_an_identity_and_are_numbered_from_zero(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.identity_script.extend([Refuse(ErrorCode.KAFKA_STORAGE_ERROR), BreakStream(True)])
    with Producer(broker.address, **QUICK) as producer:
        producer.send_batch("t", batch_of(3)).result(WAIT_S)
        producer.send_batch("t", batch_of(2)).result(WAIT_S)
    assert broker.calls.count("InitProducerId") == 3
    assert stamps_of(broker) == [(0, 0), (0, 3)]


def test_gap_is_closed_under_the_next_epoch_before_anything_goes_on(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.produce_script.extend([Append(), Refuse(ErrorCode.INVALID_RECORD)])
    with Producer(broker.address, **QUICK) as producer:
        producer.send_batch("t", batch_of(3)).result(WAIT_S)
        assert producer.send_batch("t", batch_of(5)).exception(WAIT_S) is not None
        producer.send_batch("t", batch_of(2)).result(WAIT_S)
    assert stamps_of(broker) == [(0, 0), (0, 3), (1, 3)]
    assert [request.producer_epoch for request in broker.resume_requests] == [1]


def test_lost_answer_to_resuming_is_asked_for_again_under_the_same_epoch(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Producer(broker.address, **QUICK) as producer:
        producer.send("t", b"a").result(WAIT_S)
        broker.produce_script.append(Refuse(ErrorCode.INVALID_RECORD))
        broker.identity_script.extend([BreakStream(True), BreakStream(False), Refuse(ErrorCode.KAFKA_STORAGE_ERROR)])
        assert producer.send("t", b"b").exception(WAIT_S) is not None
        assert producer.send("t", b"c").result(WAIT_S).offset == 1
    assert [request.producer_epoch for request in broker.resume_requests] == [1, 1, 1]
    assert stamps_of(broker)[-1] == (1, 1)


def test_identity_that_is_refused_for_good_fails_what_waits_and_every_later_send(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.identity_script.append(Refuse(ErrorCode.INVALID_REQUEST, "you may not"))
    with Producer(broker.address, **QUICK) as producer:
        error = producer.send("t", b"a").exception(WAIT_S)
        assert error is not None
        assert error.code is ErrorCode.INVALID_REQUEST
        for call in (lambda: producer.send("t", b"b"), lambda: producer.send_batch("t", batch_of(1))):
            with pytest.raises(BusError, match="you may not"):
                call()
        assert producer.metrics()["buffer-available-bytes"] == producer.metrics()["buffer-total-bytes"]
    assert log_of(broker, "t") == []


def test_named_producer_goes_on_where_its_last_instance_ended(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    with Producer(broker.address, name="loader", **QUICK) as first:
        assert first.last_sequence("t", 0) is None
        first.send_batch("t", batch_of(3), partition=0).result(WAIT_S)
        assert (first.last_sequence("t", 0), first.last_sequence("t", 1)) == (2, None)
    with Producer(broker.address, name="loader", **QUICK) as second:
        assert second.last_sequence("t", 0) == 2
        second.send_batch("t", batch_of(2), partition=0).result(WAIT_S)
        second.send_batch("t", batch_of(2), partition=1).result(WAIT_S)
        assert (second.last_sequence("t", 0), second.last_sequence("t", 1)) == (4, 1)
    assert stamps_of(broker) == [(0, 0), (1, 3), (1, 0)]


def test_older_instance_of_a_named_producer_is_fenced_for_good(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with (
        Producer(broker.address, name="loader", **QUICK) as older,
        Producer(broker.address, name="loader", **QUICK) as younger,
    ):
        older.send("t", b"a").result(WAIT_S)
        younger.send("t", b"b").result(WAIT_S)
        error = older.send("t", b"c").exception(WAIT_S)
        assert error is not None
        assert error.code is ErrorCode.PRODUCER_FENCED
        with pytest.raises(BusError) as caught:
            older.send("t", b"d")
        assert caught.value.code is ErrorCode.PRODUCER_FENCED
        younger.send("t", b"e").result(WAIT_S)
    assert log_of(broker, "t") == [b"a", b"b", b"e"]


def test_named_producer_fails_all_that_is_behind_a_failed_record_of_the_partition(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    broker.produce_script.append(Refuse(ErrorCode.INVALID_RECORD, "bad"))
    with Producer(broker.address, name="loader", **QUICK) as producer:
        assert producer.send("t", b"a", partition=0).exception(WAIT_S) is not None
        error = producer.send("t", b"b", partition=0).exception(WAIT_S)
        assert error is not None
        assert "a record before it failed (bad)" in error.message
        assert producer.send("t", b"c", partition=1).result(WAIT_S).offset == 0
        assert producer.last_sequence("t", 0) is None


def test_only_a_named_producer_has_a_last_sequence(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Producer(broker.address) as producer, pytest.raises(BusError, match="name"):
        producer.last_sequence("t", 0)


# ---------------------------------------------------------------- leaders


def test_new_leader_is_found_and_gets_the_records_in_order() -> None:
    cluster = Cluster()
    cluster.create("t", 2)
    with FakeBroker(cluster, 0) as old, FakeBroker(cluster, 1) as new, Producer(old.address, **QUICK) as producer:
        for number in range(20):
            if number == 10:
                cluster.move("t", 1, 1)
            producer.send("t", b"%d" % number, partition=1)
        producer.flush(WAIT_S)
        producer.send("t", b"stays", partition=0).result(WAIT_S)
        assert log_of(new, "t", 1) == [b"%d" % number for number in range(20)]
        assert any(data.partition == 1 for request in new.produce_requests for data in request.partitions)
        assert all(data.partition == 1 for request in new.produce_requests for data in request.partitions)


def test_new_leader_gets_nothing_before_the_old_one_has_answered() -> None:
    cluster = Cluster()
    cluster.create("t")
    with FakeBroker(cluster, 0) as old, FakeBroker(cluster, 1) as new, Producer(old.address, **QUICK) as producer:
        old.gate.clear()
        old.produce_script.append(Refuse(ErrorCode.KAFKA_STORAGE_ERROR))
        first = producer.send("t", b"0")
        wait_for_requests(old, 1)
        cluster.move("t", 0, 1)
        producer._cluster.refresh(["t"])
        second = producer.send("t", b"1")
        old.gate.set()
        assert (first.result(WAIT_S).offset, second.result(WAIT_S).offset) == (0, 1)
        assert log_of(new, "t") == [b"0", b"1"]


def test_word_of_an_older_leader_is_not_believed() -> None:
    cluster = Cluster()
    topic = cluster.create("t")
    with FakeBroker(cluster, 0) as old, FakeBroker(cluster, 1) as new, Producer(old.address, **QUICK) as producer:
        cluster.move("t", 0, 1)
        producer.send("t", b"0").result(WAIT_S)
        topic.partitions[0].leader_id, topic.partitions[0].leader_epoch = 0, 0  # as a broker that lags behind says
        producer._cluster.refresh(["t"])
        topic.partitions[0].leader_id, topic.partitions[0].leader_epoch = 1, 1
        producer.send("t", b"1").result(WAIT_S)
        assert old.produce_requests == []
        assert len(new.produce_requests) == 2


def test_restarted_broker_is_found_again() -> None:
    cluster = Cluster()
    cluster.create("t")
    with FakeBroker(cluster) as first:
        producer = Producer(first.address, **QUICK)
        producer.send("t", b"before").result(WAIT_S)
        address = first.address
    future = producer.send("t", b"after")
    with FakeBroker(cluster, address=address), producer:
        future.result(WAIT_S)
    assert cluster.topics["t"].partitions[0].values() == [b"before", b"after"]


def test_topic_that_was_deleted_fails_what_waits_instead_of_waiting(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Producer(broker.address, **QUICK) as producer:
        producer.send("t", b"a").result(WAIT_S)
        del broker.cluster.topics["t"]
        error = producer.send("t", b"b").exception(WAIT_S)
    assert error is not None
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topic_that_was_created_again_gets_the_records_under_its_new_id(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Producer(broker.address, **QUICK) as producer:
        producer.send("t", b"a").result(WAIT_S)
        broker.cluster.create("t")
        producer.send("t", b"b").result(WAIT_S)
    assert log_of(broker, "t") == [b"b"]


def test_partition_that_is_gone_fails_what_waits_for_it(broker: FakeBroker) -> None:
    broker.cluster.create("t", 3)
    with Producer(broker.address, **QUICK) as producer:
        producer.send("t", b"a", partition=2).result(WAIT_S)
        broker.cluster.create("t", 1)
        error = producer.send("t", b"b", partition=2).exception(WAIT_S)
    assert error is not None
    assert "has 1 partition now" in error.message


def test_second_address_serves_when_the_first_is_down(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Producer([f"127.0.0.1:{free_port()}", broker.address]) as producer:
        producer.send("t", b"a").result(WAIT_S)


# ---------------------------------------------------------------- refused at the call


def test_no_broker_says_where_and_what_to_do() -> None:
    address = f"127.0.0.1:{free_port()}"
    producer = Producer(address, max_block_ms=2_000)
    with producer, pytest.raises(BusError, match=f"bus serve --listen {address}") as caught:
        producer.send("t", b"a")
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert caught.value.retriable


def test_unknown_partition_is_refused_at_the_call(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    with Producer(broker.address) as producer:
        for call in (
            lambda: producer.send("t", b"a", partition=2),
            lambda: producer.send_batch("t", batch_of(1), partition=-1),
        ):
            with pytest.raises(BusError) as caught:
                call()
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"value": "text"}, TypeError),
        ({"value": b"", "key": 5}, TypeError),
        ({"value": b"", "headers": [(b"h", b"")]}, TypeError),
        ({"value": b"", "headers": [("h", "text")]}, TypeError),
        ({"value": b"", "headers": [("\ud800", b"")]}, UnicodeEncodeError),
        ({"value": b"", "timestamp_ms": 1.5}, TypeError),
        ({"value": b"", "timestamp_ms": -5}, BusError),
        ({"value": b"", "timestamp_ms": 2**62}, BusError),
        ({"value": b"x" * 1_100_000}, BusError),
        ({"value": b"", "partition": 0.5}, TypeError),
        ({"value": b"", "partition": True}, TypeError),
    ],
)
def test_record_that_cannot_be_sent_is_refused_at_the_call(
    broker: FakeBroker, arguments: dict[str, Any], error: type[Exception]
) -> None:
    broker.cluster.create("t")
    with Producer(broker.address) as producer:
        with pytest.raises(error):
            producer.send("t", **arguments)
        producer.send("t", bytearray(b"fine")).result(WAIT_S)
    assert log_of(broker, "t") == [b"fine"]


def test_partition_that_is_no_number_is_refused_and_harms_nobody_else(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    with Producer(broker.address) as producer:
        with pytest.raises(TypeError, match="partition"):
            producer.send_batch("t", batch_of(1), partition=1.0)  # type: ignore[arg-type]
        producer.send("t", b"fine", partition=0).result(WAIT_S)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (pa.table({"values": [b"a"]}), "found values"),
        (pa.table({"value": [b"a"], "offset": [1]}), "found value, offset"),
        (pa.table({"value": [b"a"], "key": [1.5]}), "key"),
        (pa.table({"value": [b"x" * 1_100_000]}), "max.request.size"),
    ],
)
def test_batch_that_cannot_be_sent_is_refused_at_the_call(broker: FakeBroker, table: pa.Table, expected: str) -> None:
    broker.cluster.create("t", 2)
    with Producer(broker.address) as producer, pytest.raises(BusError, match=expected):
        producer.send_batch("t", table)
    assert broker.produce_requests == []


def test_full_buffer_says_what_was_waited_for_and_frees_itself(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.gate.clear()
    with Producer(broker.address, buffer_memory=4_096, max_request_size=4_096, max_block_ms=3_000) as producer:
        first = producer.send("t", b"x" * 3_000)
        with pytest.raises(BusError, match=r"buffer\.memory=4096") as caught:
            producer.send("t", b"x" * 3_000)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        broker.gate.set()
        first.result(WAIT_S)
        producer.send("t", b"x" * 3_000).result(WAIT_S)


def test_send_waits_for_room_and_goes_on_when_there_is_some(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.gate.clear()
    with Producer(broker.address, buffer_memory=4_096, max_request_size=4_096) as producer:
        producer.send("t", b"x" * 3_000)
        waiting = threading.Thread(target=lambda: producer.send("t", b"y" * 3_000).result(WAIT_S))
        waiting.start()
        broker.gate.set()
        waiting.join(WAIT_S)
        assert not waiting.is_alive()
    assert log_of(broker, "t") == [b"x" * 3_000, b"y" * 3_000]


def test_interrupt_while_a_record_is_added_shifts_none_of_those_behind_it(broker: FakeBroker) -> None:
    class InterruptedColumn(list[Any]):
        def append(self, value: Any) -> None:
            batch.times_ms = list(self)
            raise KeyboardInterrupt

    broker.cluster.create("t")
    with Producer(broker.address, linger_ms=60_000) as producer:
        producer.send("t", b"0", key=b"k0")
        batch = producer._open["t"]
        batch.times_ms = InterruptedColumn(batch.times_ms)
        with pytest.raises(KeyboardInterrupt):
            producer.send("t", b"lost", key=b"lost")
        later = producer.send("t", b"1", key=b"k1")
        producer.flush(WAIT_S)
        assert later.result(0).offset == 1
    assert records_of(broker, "t") == [(b"k0", b"0"), (b"k1", b"1")]


# ---------------------------------------------------------------- the end


def test_flush_waits_for_everything_and_says_what_is_missing(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.gate.clear()
    with Producer(broker.address) as producer:
        futures = [producer.send("t", b"%d" % number) for number in range(3)]
        with pytest.raises(TimeoutError, match="1 batch open"):
            producer.flush(0.01)
        broker.gate.set()
        producer.flush(WAIT_S)
        assert all(future.done() for future in futures)


def test_close_in_a_hurry_fails_what_is_open_and_ends_every_thread(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.gate.clear()
    producer = Producer(broker.address)
    future = producer.send("t", b"a")
    wait_for_requests(broker, 1)
    producer.close(timeout=0.01)
    producer.close()
    error = future.exception(0)
    assert error is not None
    assert "closed" in error.message
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("bus-produce")] == []
    with pytest.raises(BusError, match="closed"):
        producer.send("t", b"b")


def test_close_without_time_fails_what_lingers_and_comes_back(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    producer = Producer(broker.address, linger_ms=60_000)
    producer.send("t", b"a").add_done_callback(lambda done: seen.append(done.exception(0)))
    seen: list[BusError | None] = []
    broker.gate.clear()
    producer.close(timeout=0)
    (error,) = seen
    assert error is not None
    assert error.code is ErrorCode.REQUEST_TIMED_OUT
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("bus-produce")] == []


def test_memory_is_free_again_after_every_kind_of_outcome(broker: FakeBroker) -> None:
    broker.cluster.create("t", 4)
    broker.produce_script.extend(
        [
            Refuse(ErrorCode.INVALID_RECORD),
            Refuse(ErrorCode.KAFKA_STORAGE_ERROR),
            BreakStream(True),
            Refuse(ErrorCode.MESSAGE_TOO_LARGE, "one", {0: "it"}),
            AppendThenRefuse(),
        ]
    )
    with Producer(broker.address, linger_ms=1, **QUICK) as producer:
        for number in range(300):
            producer.send("t", b"%d" % number, key=b"k%d" % (number % 7) if number % 3 else None)
            if number % 50 == 0:
                producer.send_batch("t", batch_of(20), partition=number // 50 % 4)
        producer.flush(WAIT_S)
        found = producer.metrics()
        assert found["buffer-available-bytes"] == found["buffer-total-bytes"]


def test_forgotten_producer_delivers_what_it_took_in_and_ends_its_threads(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    producer = Producer(broker.address, linger_ms=60_000)
    future = producer.send("t", b"a")
    mine = [thread for thread in threading.enumerate() if thread.name.startswith("bus-produce")]
    del producer
    gc.collect()
    assert future.result(WAIT_S).offset == 0
    for thread in mine:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_each_thread_finds_its_records_in_its_order_in_one_partition(broker: FakeBroker) -> None:
    broker.cluster.create("t")

    def work(name: int) -> None:
        for number in range(500):
            futures[name].append(producer.send("t", b"%d-%d" % (name, number)))

    futures: dict[int, list[Any]] = {0: [], 1: []}
    broker.produce_script.extend([Append(), Refuse(ErrorCode.KAFKA_STORAGE_ERROR), BreakStream(True)])
    with Producer(broker.address, linger_ms=1, batch_size=1_000, **QUICK) as producer:
        threads = [threading.Thread(target=work, args=(name,)) for name in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    log = log_of(broker, "t")
    for name in (0, 1):
        mine = [(offset, value) for offset, value in enumerate(log) if (value or b"").startswith(b"%d-" % name)]
        assert [value for _, value in mine] == [b"%d-%d" % (name, number) for number in range(500)]
        assert [future.result(0).offset for future in futures[name]] == [offset for offset, _ in mine]


RECORDS = st.lists(st.tuples(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=4)), max_size=60)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(records=RECORDS, partitions=st.integers(1, 5), batch_size=st.sampled_from([0, 60, 16_384]))
def test_short_way_of_a_plain_record_and_the_long_way_of_every_other_give_the_same(
    broker: FakeBroker, records: list[tuple[bytes | None, bytes | None]], partitions: int, batch_size: int
) -> None:
    class Bystander:
        def on_send(self, record: Any) -> Any:
            return record

        def on_acknowledgement(self, metadata: Any, error: Any) -> None: ...

        def close(self) -> None: ...

    broker.cluster.create("short", partitions)
    broker.cluster.create("long", partitions)
    began_ms = time.time_ns() // 1_000_000
    with (
        Producer(broker.address, batch_size=batch_size) as plain,
        Producer(broker.address, batch_size=batch_size, interceptors=[Bystander()]) as watched,
    ):
        placed = [plain.send("short", value, key) for value, key in records]
        expected = [watched.send("long", value, key) for value, key in records]
        plain.flush(WAIT_S)
        watched.flush(WAIT_S)
        ended_ms = time.time_ns() // 1_000_000
        for (_, key), one, other in zip(records, placed, expected, strict=True):
            for found in (one.result(0), other.result(0)):
                assert began_ms <= found.timestamp_ms <= ended_ms
                assert key is None or found.partition == partition_of_key(key, partitions)
        for topic, futures in (("short", placed), ("long", expected)):
            logs = [records_of(broker, topic, partition) for partition in range(partitions)]
            for (value, key), future in zip(records, futures, strict=True):
                found = future.result(0)
                assert logs[found.partition][found.offset] == (key, value)
            for partition in range(partitions):
                mine = [future.result(0).offset for future in futures if future.result(0).partition == partition]
                assert mine == list(range(len(logs[partition])))


def test_interceptor_learns_what_failed_and_where(broker: FakeBroker) -> None:
    heard: list[tuple[Any, ...]] = []

    class Watching:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record

        def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None, record: ProducerRecord) -> None:
            name = error.name if isinstance(error, BusError) else type(error).__name__
            heard.append((metadata.topic, metadata.partition, metadata.offset, name, record.value))

        def close(self) -> None: ...

    broker.cluster.create("t", 3)
    broker.produce_script.append(Refuse(ErrorCode.INVALID_RECORD))
    with Producer(broker.address, max_block_ms=3_000, interceptors=[Watching()], **QUICK) as producer:
        producer.send("t", b"a", key=b"k").exception(WAIT_S)
        for topic, value, partition in (("t", b"x" * 2_000_000, 1), ("nowhere", b"b", None), ("t", "text", None)):
            with pytest.raises((BusError, TypeError)):
                producer.send(topic, value, partition=partition)
        producer.send("t", b"c", partition=2).result(WAIT_S)
        producer.flush(WAIT_S)
    assert [(*said[:4], said[4][:4]) for said in heard] == [
        ("t", partition_of_key(b"k", 3), -1, "INVALID_RECORD", b"a"),
        ("t", 1, -1, "MESSAGE_TOO_LARGE", b"xxxx"),
        ("nowhere", -1, -1, "REQUEST_TIMED_OUT", b"b"),
        ("t", -1, -1, "TypeError", "text"),
        ("t", 2, 0, "NoneType", b"c"),
    ]


def test_what_was_given_is_closed_once_and_a_partitioner_learns_who_serves(broker: FakeBroker) -> None:
    class Part:
        closed = 0
        available: Any = None

        def serialize(self, topic: str, headers: Any, value: Any) -> bytes:
            return bytes(value)

        def partition(self, topic: str, key: Any, value: Any, partition_count: int, *, available: list[int]) -> int:
            self.available = available
            return available[-1]

        def close(self) -> None:
            self.closed += 1

    broker.cluster.create("t", 3)
    broker.cluster.move("t", 2, leader_id=9)
    serializer, partitioner = Part(), Part()
    producer = Producer(
        broker.address, key_serializer=serializer, value_serializer=serializer, partitioner=partitioner, **QUICK
    )
    assert producer.send("t", b"a").result(WAIT_S).partition == 1
    producer.close()
    producer.close()
    assert (serializer.closed, partitioner.closed, partitioner.available) == (1, 1, [0, 1])


def test_many_threads_share_a_producer_and_nothing_is_lost(broker: FakeBroker) -> None:
    broker.cluster.create("t", 3)

    def work(name: int) -> None:
        for number in range(100):
            producer.send("t", b"%d-%d" % (name, number), partition=name % 3)

    with Producer(broker.address, buffer_memory=8_192, max_request_size=4_096) as producer:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    for name in range(6):
        mine = [value for value in log_of(broker, "t", name % 3) if (value or b"").startswith(b"%d-" % name)]
        assert mine == [b"%d-%d" % (name, number) for number in range(100)]


def test_callback_that_flushes_or_closes_does_not_wait_for_itself(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    heard: list[object] = []
    is_over = threading.Event()
    producer = Producer(broker.address)

    def on_done(_: object) -> None:
        try:
            producer.flush()
        except BusError as error:
            heard.append(error.code)
        producer.close()
        is_over.set()

    producer.send("t", b"a").add_done_callback(on_done)
    assert is_over.wait(WAIT_S)
    assert heard == [ErrorCode.INVALID_REQUEST]


def test_flush_returns_when_callbacks_have_run(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    may_end, has_begun = threading.Event(), threading.Event()

    def slow(_: object) -> None:
        has_begun.set()
        assert may_end.wait(WAIT_S)

    with Producer(broker.address, **{**QUICK, "linger_ms": 60_000}) as producer:
        future = producer.send("t", b"a")
        future.add_done_callback(slow)
        flushing = threading.Thread(target=producer.flush)
        flushing.start()
        assert has_begun.wait(WAIT_S)
        assert future.done()
        with pytest.raises(TimeoutError, match="expected callbacks to end"):
            producer.flush(0.01)
        assert flushing.is_alive()
        may_end.set()
        flushing.join(WAIT_S)
        assert not flushing.is_alive()


def test_callback_that_wants_to_end_its_thread_disturbs_nothing(broker: FakeBroker) -> None:
    broker.cluster.create("t")

    def leave(_: object) -> None:
        raise SystemExit(3)

    with Producer(broker.address, **QUICK) as producer:
        producer.send("t", b"a").add_done_callback(leave)
        producer.send_batch("t", pa.table({"value": [b"b"]})).add_done_callback(leave)
        producer.flush(WAIT_S)
        assert producer.send("t", b"c").result(WAIT_S).offset == 2
    assert sorted(log_of(broker, "t")) == [b"a", b"b", b"c"]
