"""The disk is full, or there is none: the broker over stores other than a healthy folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from bus import Admin, BusError, Consumer, NewTopic, Producer, TopicPartition
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.stores.local import FileSystem, LocalStore
from bus.storage_delta.stores.store import Data
from tests.support.broker_thread import running_broker
from tests.support.stores import memory_storage

PARTITION = TopicPartition("t", 0)


class SmallDisk(FileSystem):
    def __init__(self) -> None:
        self.is_full = False

    def write(self, fd: int, data: Data) -> int:  # type: ignore[override]
        if self.is_full:
            os.write(fd, data[: len(data) // 2])  # a disk fills up in the middle of a file
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(fd, data)


class FlakySync(FileSystem):
    """The next sync of a folder whose name ends so fails once."""

    def __init__(self) -> None:
        self.fails_at = ""

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        if self.fails_at and os.readlink(f"/proc/self/fd/{fd}").endswith(self.fails_at):
            self.fails_at = ""
            raise OSError(errno.EIO, "Input/output error")
        os.fsync(fd)


def read_all(address: str, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([PARTITION])
        while len(values) < count:
            values += [record.value for record in consumer.poll(timeout_ms=5_000)]
    return values


def test_full_disk_refuses_writes_serves_reads_and_recovers_when_there_is_room(tmp_path: Path) -> None:
    root = tmp_path / "root"
    disk = SmallDisk()
    with running_broker(root, storage=open_storage_on(LocalStore(str(root), disk))) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin:
            admin.create_topics([NewTopic("t", partitions=1)])
        with Producer(address, retries=0) as producer:
            producer.send("t", b"before").result(50)
            files_before = sorted((root / "topics/t/0").rglob("*"))
            disk.is_full = True
            for _ in range(3):
                with pytest.raises(BusError, match="No space left") as caught:
                    producer.send("t", b"lost").result(50)
                assert caught.value.name == "KAFKA_STORAGE_ERROR"
                assert caught.value.retriable
            assert read_all(address, 1) == [b"before"]
            assert sorted((root / "topics/t/0").rglob("*")) == files_before, "half-written files were left"
            with Admin(address, retries=0) as admin, pytest.raises(BusError, match="No space left"):
                admin.create_topics([NewTopic("u", partitions=1)])
            disk.is_full = False
            assert producer.send("t", b"after").result(50).offset == 1
            with Admin(address) as admin:
                admin.create_topics([NewTopic("u", partitions=1)])
                assert admin.list_topics() == ["t", "u"]
        assert read_all(address, 2) == [b"before", b"after"]


def test_unknown_fate_of_a_topic_is_settled_by_the_log_and_the_topic_is_served(tmp_path: Path) -> None:
    root = tmp_path / "root"
    disk = FlakySync()
    with running_broker(root, storage=open_storage_on(LocalStore(str(root), disk))) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address, retries=0) as admin, Producer(address, retries=0) as producer:
            disk.fails_at = "__cluster_metadata/0/_delta_log"
            with pytest.raises(BusError, match="could not be synced") as caught:
                admin.create_topics([NewTopic("t", partitions=1)])
            assert caught.value.retriable
            assert admin.list_topics() == ["t"]
            assert producer.send("t", b"v").result(50).offset == 0

            disk.fails_at = "topics/t/0/_delta_log"
            with pytest.raises(BusError, match="the outcome of committing version 2 is unknown"):
                producer.send("t", b"w").result(50)
            assert producer.send("t", b"x").result(50).offset == 2

            disk.fails_at = "__cluster_metadata/0/_delta_log"
            with pytest.raises(BusError, match="could not be synced"):
                admin.delete_topics(["t"])
            assert admin.list_topics() == []
            admin.create_topics([NewTopic("t", partitions=1)])
            with Producer(address) as another:
                assert another.send("t", b"anew", partition=0).result(50).offset == 0


def test_broker_needs_no_files_at_all(tmp_path: Path) -> None:
    with running_broker("memory", storage=memory_storage()) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topics([NewTopic("t", partitions=1)])
            batch = pa.table({"value": [b"%d" % number for number in range(5000)], "key": [b"k"] * 5000})
            producer.send_batch("t", batch, partition=0).result(50)
            assert read_all(address, 5000) == [b"%d" % number for number in range(5000)]
            admin.delete_topics(["t"])
            admin.create_topics([NewTopic("t", partitions=1)])
            assert producer.send("t", b"anew", partition=0).result(50).offset == 0
