"""A partition whose table is damaged stops with a reason; the other partitions serve on."""

from __future__ import annotations

import shutil
from pathlib import Path

import grpc
import pytest

from bus import Admin, BusError, Consumer, NewTopic, Producer, TopicPartition
from bus.errors import StorageDamaged
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.settings.broker import BrokerConfig
from bus.storage_delta.repair.repair import repair_partition
from bus.storage_delta.stores.local import LocalStore
from bus.tables.topics import TopicTables
from tests.support.broker_thread import running_broker


def test_damaged_partition_is_refused_by_file_and_the_others_serve(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running_broker(root) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin:
            admin.create_topics([NewTopic("t", partitions=2)])
        with Producer(address) as producer:
            for partition in (0, 1):
                producer.send("t", b"v", partition=partition).result(50)
    (data_file,) = (root / "topics/t/1").glob("*.parquet")
    data_file.write_bytes(data_file.read_bytes()[:-1])

    with running_broker(root) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Producer(address, retries=0) as producer:
            assert producer.send("t", b"w", partition=0).result(50).offset == 1
            with pytest.raises(BusError) as caught:
                producer.send("t", b"w", partition=1).result(50)
        assert caught.value.name == "KAFKA_STORAGE_ERROR"
        assert data_file.name in caught.value.message
        assert "`bus log verify t/1`" in caught.value.message
        with Consumer(address, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            assert [record.value for record in consumer.poll(timeout_ms=50_000)] == [b"v", b"w"]


def test_root_that_lost_its_metadata_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running_broker(root) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.create_topics([NewTopic("t", partitions=1)])
    shutil.rmtree(root / "topics/__cluster_metadata")
    with (
        pytest.raises(StorageDamaged, match="expected the cluster's metadata, found none, but there are topics: t"),
        running_broker(root),
    ):
        pass
    assert (root / "topics/t/0/_delta_log").exists()


def test_flipped_bit_inside_a_record_is_found_and_not_served(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running_broker(root) as broker, Producer(f"127.0.0.1:{broker.port}") as producer:
        with Admin(f"127.0.0.1:{broker.port}") as admin:
            admin.create_topics([NewTopic("t", partitions=1)])
        producer.send("t", b"the very words that were acknowledged").result(50)
    (data_file,) = (root / "topics/t/0").glob("*.parquet")
    damaged = bytearray(data_file.read_bytes())
    damaged[damaged.index(b"very words")] ^= 1
    data_file.write_bytes(damaged)

    with (
        running_broker(root) as broker,
        grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel,
    ):
        asked = pb.FetchRequest(partitions=[pb.FetchPartition(topic="t", partition=0)])
        for _ in range(2):
            answer = bus_pb2_grpc.BusStub(channel).FetchOnce(asked).partitions[0]
            assert answer.error_code == pb.ERROR_CODE_CORRUPT_MESSAGE
            assert data_file.name in answer.error_message
            assert not answer.batches


def rot(root: Path, offset: int) -> str:
    """Damage the file of the one record at `offset`, size kept; its name."""
    (data_file,) = (root / "topics/t/0").glob(f"{offset:020d}-*.parquet")
    damaged = bytearray(data_file.read_bytes())
    damaged[damaged.index(b"record %d" % offset)] ^= 1
    data_file.write_bytes(damaged)
    return data_file.name


def test_a_file_that_rots_while_the_broker_runs_is_told_to_consumers_and_the_rest_is_served(tmp_path: Path) -> None:
    root = tmp_path / "root"
    config = BrokerConfig(log_cache_bytes=0)  # everything is read from files
    with running_broker(root, config=config) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin:
            admin.create_topics([NewTopic("t", partitions=1)])
        with Producer(address) as producer:
            for offset in range(4):
                producer.send("t", b"record %d" % offset, partition=0, timestamp_ms=1_000 + offset).result(50)
        name = rot(root, 2)
        with Consumer(address, auto_offset_reset="earliest") as consumer:
            place = TopicPartition("t", 0)
            consumer.assign([place])
            found = []
            while len(found) < 2:
                found += consumer.poll(timeout_ms=5_000)
            assert [record.offset for record in found] == [0, 1]
            for _ in range(2):  # until it seeks, and however often it asks
                with pytest.raises(BusError, match="offsets 2 to 2") as caught:
                    consumer.poll(timeout_ms=5_000)
                assert caught.value.name == "CORRUPT_MESSAGE"
                assert name in caught.value.message
                assert "`bus log verify t/0`" in caught.value.message
                assert "record at offset 2 cannot be read; seek past it" in caught.value.message
            assert consumer.position(place) == 2
            with pytest.raises(BusError, match="offsets 2 to 2") as caught:
                consumer.offsets_for_times({place: 1_002})
            assert caught.value.name == "CORRUPT_MESSAGE"
            assert name in caught.value.message
            assert "`bus log verify t/0`" in caught.value.message
            consumer.seek(place, 3)
            assert [record.value for record in consumer.poll(timeout_ms=50_000)] == [b"record 3"]
            with Producer(address) as producer:
                assert producer.send("t", b"record 4", partition=0).result(50).offset == 4
            assert [record.value for record in consumer.poll(timeout_ms=50_000)] == [b"record 4"]


def test_looking_for_a_time_in_a_file_that_rotted_is_answered_as_a_fetch_is(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running_broker(root) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin:
            admin.create_topics([NewTopic("t", partitions=1)])
        with Producer(address) as producer:
            producer.send("t", b"record 0", partition=0, timestamp_ms=1_000).result(50)
            producer.send("t", b"record 1", partition=0, timestamp_ms=2_000).result(50)
        (data_file,) = (root / "topics/t/0").glob(f"{1:020d}-*.parquet")
        data_file.write_bytes(bytes(data_file.stat().st_size))
        with grpc.insecure_channel(address) as channel:
            stub = bus_pb2_grpc.BusStub(channel)
            asked = [pb.ListOffsetsPartition(topic="t", partition=0, timestamp_ms=at) for at in (1_500, 500)]
            bad, good = stub.ListOffsets(pb.ListOffsetsRequest(partitions=asked)).partitions
        assert bad.error_code == pb.ERROR_CODE_CORRUPT_MESSAGE
        assert data_file.name in bad.error_message
        assert "offsets 1 to 1" in bad.error_message
        assert "`bus log verify t/0`" in bad.error_message
        assert (good.error_code, good.offset) == (0, 0)


def mend(root: Path) -> None:
    """Repair as `bus log repair t/0 --execute` does."""
    topic_id = TopicTables(str(root)).cluster().topics["t"].topic_id
    report = repair_partition(
        LocalStore(str(root)), TopicPartition("t", 0), topic_id=topic_id, now_ms=1_700_000_000_000, is_rehearsal=False
    )
    assert report.error is None, report.error
    assert any(step.action == "give up" for step in report.steps)


def create_and_fill(root: Path, count: int) -> None:
    with running_broker(root) as broker, Producer(f"127.0.0.1:{broker.port}") as producer:
        with Admin(f"127.0.0.1:{broker.port}") as admin:
            admin.create_topics([NewTopic("t", partitions=1)])
        for offset in range(count):
            producer.send("t", b"record %d" % offset, partition=0).result(50)


def test_consumers_pass_over_offsets_that_a_repair_gave_up(tmp_path: Path) -> None:
    root = tmp_path / "root"
    create_and_fill(root, 5)
    rot(root, 2)
    mend(root)
    for start, expected in ((0, [0, 1, 3, 4, 5]), (2, [3, 4, 5, 6])):
        with running_broker(root) as broker:
            address = f"127.0.0.1:{broker.port}"
            with Producer(address) as producer:
                producer.send("t", b"more", partition=0).result(50)
            with Consumer(address) as consumer:
                place = TopicPartition("t", 0)
                consumer.assign([place])
                consumer.seek(place, start)
                found: list[int] = []
                while len(found) < len(expected):
                    found += [record.offset for record in consumer.poll(timeout_ms=5_000)]
                assert found == expected


def test_a_consumer_behind_a_lost_end_waits_for_the_next_record(tmp_path: Path) -> None:
    root = tmp_path / "root"
    create_and_fill(root, 3)
    rot(root, 2)
    mend(root)
    with running_broker(root) as broker:
        address = f"127.0.0.1:{broker.port}"
        place = TopicPartition("t", 0)
        with Consumer(address, auto_offset_reset="earliest") as consumer, Producer(address) as producer:
            consumer.assign([place])
            assert [record.offset for record in consumer.poll(timeout_ms=50_000)] == [0, 1]
            assert not consumer.poll(timeout_ms=0)
            producer.send("t", b"record 3", partition=0)
            assert [record.offset for record in consumer.poll(timeout_ms=50_000)] == [3]
