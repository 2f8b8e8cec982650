"""The life of a log through a broker: records deleted, logs rolled, compacted and cleaned, files of a job swapped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from bus import Admin, BusError, Consumer, ErrorCode, NewTopic, Producer, TopicPartition
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.settings.broker import BrokerConfig
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.verify.verification import verify_partition
from tests.support.broker_thread import running_broker

CONFIG = BrokerConfig(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0)


@dataclass(frozen=True)
class Bus:
    root: Path
    address: str
    admin: Admin

    def create(self, topic: str, **configs: object) -> TopicPartition:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        self.admin.create_topics([NewTopic(topic, 1, named)])
        return TopicPartition(topic, 0)

    def append(self, topic: str, *commits: list[tuple[bytes | None, bytes | None]]) -> None:
        """Each list of keys and values as a commit of its own."""
        with Producer(self.address) as producer:
            for records in commits:
                columns = {"key": [key for key, _ in records], "value": [value for _, value in records]}
                table = pa.table({name: pa.array(cells, pa.binary()) for name, cells in columns.items()})
                producer.send_batch(topic, table, partition=0).result(30)

    def fill(self, topic: str, commits: int) -> None:
        """Ten records a commit; a value tells its offset."""
        self.append(topic, *([(b"k", b"%d" % (10 * n + i)) for i in range(10)] for n in range(commits)))

    def table(self, topic: str) -> DeltaTable:
        return DeltaTable(str(self.root / "topics" / topic / "0"))

    def read(self, topic: str) -> list[tuple[int, bytes | None]]:
        partition = TopicPartition(topic, 0)
        found: list[tuple[int, bytes | None]] = []
        with Consumer(self.address, auto_offset_reset="earliest") as consumer:
            consumer.assign([partition])
            end = consumer.end_offsets([partition])[partition]
            while consumer.position(partition) < end:
                found += [(record.offset, record.value) for record in consumer.poll(10_000)]
        return found

    def breaches(self, topic: str) -> list[str]:
        return [str(one) for one in verify_partition(LocalStore(str(self.root)), TopicPartition(topic, 0)).breaches]


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    root = tmp_path_factory.mktemp("life") / "root"
    with running_broker(root, config=CONFIG) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin:
            yield Bus(root, address, admin)


def offset_at(bus: Bus, partition: TopicPartition, timestamp_ms: int) -> int:
    return bus.admin.list_offsets({partition: timestamp_ms})[partition].offset


# ------------------------------------------------------------------ deleting records


def test_log_starts_where_records_were_deleted_up_to(bus: Bus) -> None:
    partition = bus.create("cut")
    bus.fill("cut", 3)
    done = bus.admin.delete_records({partition: 10})[partition]
    assert (done.low_watermark, offset_at(bus, partition, -2), offset_at(bus, partition, -1)) == (10, 10, 30)
    assert bus.table("cut").version() == done.version
    assert bus.table("cut").transaction_version("bus/log_start") == 10
    inside = bus.admin.delete_records({partition: 15})[partition]
    assert (inside.low_watermark, inside.version) == (15, done.version + 1)
    assert bus.read("cut") == [(offset, b"%d" % offset) for offset in range(15, 30)]
    assert offset_at(bus, partition, 0) == 15, "the first record that is left, by time"
    again = bus.admin.delete_records({partition: 3})[partition]
    assert (again.low_watermark, again.version) == (15, inside.version), "below the log start nothing is done"
    assert bus.breaches("cut") == []


def test_all_records_may_go_and_the_next_one_gets_the_next_offset(bus: Bus) -> None:
    partition = bus.create("emptied")
    bus.fill("emptied", 2)
    assert bus.admin.delete_records({partition: -1})[partition].low_watermark == 20
    assert (offset_at(bus, partition, -2), offset_at(bus, partition, -1)) == (20, 20)
    bus.append("emptied", [(b"k", b"new")])
    assert bus.read("emptied") == [(20, b"new")]


def test_log_start_outlives_a_restart(tmp_path: Path) -> None:
    partition = TopicPartition("kept", 0)
    with running_broker(tmp_path, config=CONFIG) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        bus = Bus(tmp_path, f"127.0.0.1:{broker.port}", admin)
        bus.create("kept")
        bus.fill("kept", 2)
        admin.delete_records({partition: 7})
    with running_broker(tmp_path, config=CONFIG) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        bus = Bus(tmp_path, f"127.0.0.1:{broker.port}", admin)
        assert offset_at(bus, partition, -2) == 7
        assert [offset for offset, _ in bus.read("kept")] == list(range(7, 20))


@pytest.mark.parametrize(
    ("policy", "code"),
    [("delete", None), ("compact,delete", None), ("", None), ("compact", ErrorCode.POLICY_VIOLATION)],
)
def test_policy_of_compact_alone_lets_no_records_be_deleted(bus: Bus, policy: str, code: ErrorCode | None) -> None:
    partition = bus.create(f"policy-{policy.replace(',', '-')}", cleanup_policy=policy)
    bus.append(partition.topic, [(b"k", b"v")])
    if code is None:
        assert bus.admin.delete_records({partition: 1})[partition].low_watermark == 1
        return
    with pytest.raises(BusError, match=r"cleanup\.policy") as caught:
        bus.admin.delete_records({partition: 1})
    assert caught.value.code is code


def test_offsets_that_cannot_be_are_refused_with_what_was_expected(bus: Bus) -> None:
    partition = bus.create("bounds")
    bus.fill("bounds", 1)
    for offset in (11, -2, 2**63 - 1):
        with pytest.raises(BusError, match=f"found {offset}") as caught:
            bus.admin.delete_records({partition: offset})
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert offset_at(bus, partition, -2) == 0


def test_records_of_the_bus_itself_are_not_deleted(bus: Bus) -> None:
    with Consumer(bus.address, group_id="g") as consumer:
        consumer.assign([bus.create("grouped")])
        consumer.commit({TopicPartition("grouped", 0): 0})
    with pytest.raises(BusError, match="__consumer_offsets") as caught:
        bus.admin.delete_records({TopicPartition("__consumer_offsets", 0): -1})
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


# ------------------------------------------------------------------ below the log start


@pytest.mark.parametrize(
    ("reset", "first"),
    [("earliest", 15), ("latest", 30), ("by_duration:P1D", 15), ("none", None)],
)
def test_consumer_below_the_log_start_goes_where_its_reset_says(bus: Bus, reset: str, first: int | None) -> None:
    partition = bus.create(f"below-{re.sub('[^a-z]', '', reset.lower())}")
    bus.fill(partition.topic, 3)
    bus.admin.delete_records({partition: 15})
    with Consumer(bus.address, auto_offset_reset=reset) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 3)
        if first is None:
            with pytest.raises(BusError, match="15") as caught:
                consumer.poll(10_000)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
            return
        if first == 30:
            assert consumer.poll(500) == []
            bus.append(partition.topic, [(b"k", b"30")])
        records = consumer.poll(10_000)
        assert (records[0].offset, records[0].value) == (first, b"%d" % first)


def test_waiting_consumer_reads_on_while_records_before_it_go(bus: Bus) -> None:
    partition = bus.create("waiting")
    bus.fill("waiting", 2)
    with Consumer(bus.address, auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        seen = [record.offset for record in consumer.poll(10_000, max_records=20)]
        while len(seen) < 20:
            seen += [record.offset for record in consumer.poll(10_000, max_records=20)]
        bus.admin.delete_records({partition: -1})
        bus.append("waiting", [(b"k", b"20")])
        assert [record.value for record in consumer.poll(10_000)] == [b"20"]


# ------------------------------------------------------------------ maintenance by hand


def test_rolling_by_hand_makes_one_file_and_moves_no_record(bus: Bus) -> None:
    bus.create("rolled")
    bus.fill("rolled", 6)
    before = bus.table("rolled")
    (result,) = bus.admin.maintain_log("rolled", "roll")
    assert (result.partition, result.files_before, result.files_after, result.log_start) == (0, 6, 1, 0)
    assert result.rewritten_bytes == result.bytes_after > 0
    after = bus.table("rolled")
    assert result.version == after.version() == before.version() + 1
    assert len(after.file_uris()) == 1
    assert after.to_pyarrow_dataset().to_table(columns=["offset"]).column("offset").to_pylist() == list(range(60))
    assert [value for _, value in bus.read("rolled")] == [b"%d" % offset for offset in range(60)]
    (again,) = bus.admin.maintain_log("rolled", "roll")
    assert (again.version, again.rewritten_bytes) == (result.version, 0), "what is one file is left alone"
    assert bus.breaches("rolled") == []


def test_compacting_by_hand_keeps_the_last_record_of_each_key(bus: Bus) -> None:
    bus.create("compacted", cleanup_policy="compact")
    commits = [[(b"a", b"1"), (b"b", b"2")], [(b"a", b"3")], [(b"b", None), (b"c", b"5")]]
    bus.append("compacted", *commits, [(b"d", b"6")])
    (result,) = bus.admin.maintain_log("compacted", "compact")
    assert result.files_before == 4
    left = [(2, b"3"), (3, None), (4, b"5"), (5, b"6")]
    rows = bus.table("compacted").to_pyarrow_dataset().to_table(columns=["offset", "value"]).to_pylist()
    assert sorted((row["offset"], row["value"]) for row in rows) == left
    seen = bus.read("compacted")
    assert seen == sorted(seen)
    assert set(left) <= set(seen), "who reads while it is compacted may see the others, too"
    assert bus.breaches("compacted") == []


def test_compacting_is_refused_where_the_policy_has_no_compact(bus: Bus) -> None:
    bus.create("uncompacted")
    with pytest.raises(BusError, match=r"cleanup\.policy") as caught:
        list(bus.admin.maintain_log("uncompacted", "compact"))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


def test_cleaning_by_hand_drops_versions_and_the_files_that_only_they_had(bus: Bus) -> None:
    partition = bus.create("cleaned", delta_log_retention_ms=0, file_delete_delay_ms=0)
    bus.fill("cleaned", 4)
    list(bus.admin.maintain_log("cleaned", "roll"))
    bus.admin.delete_records({partition: 5})
    (result,) = bus.admin.maintain_log("cleaned", "clean")
    assert (result.log_start, result.deleted_files) == (5, 4)
    assert result.dropped_versions > 0
    assert result.deleted_bytes > 0
    folder = bus.root / "topics" / "cleaned" / "0"
    assert len(list(folder.glob("*.parquet"))) == 1
    assert [offset for offset, _ in bus.read("cleaned")] == list(range(5, 40))
    assert bus.breaches("cleaned") == []


def test_cleaning_by_hand_does_what_retention_is_due(bus: Bus) -> None:
    bus.create("retired", retention_bytes=0)
    bus.fill("retired", 2)
    (result,) = bus.admin.maintain_log("retired", "clean")
    assert result.log_start == 20
    assert bus.read("retired") == []


def test_topic_that_does_not_exist_and_unknown_actions_are_refused(bus: Bus) -> None:
    with grpc.insecure_channel(bus.address) as channel:
        stub = bus_pb2_grpc.BusStub(channel)
        (answer,) = stub.MaintainLog(pb.MaintainLogRequest(topic="nowhere"))
        assert (answer.partition, answer.error_code) == (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert "'nowhere'" in answer.error_message
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.MaintainLog(pb.MaintainLogRequest(topic="rolled", action=7)))  # type: ignore[arg-type]
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# ------------------------------------------------------------------ files of a job


def rewrite(bus: Bus, topic: str, name: str, *, offsets: range | None = None) -> list[str]:
    """All live files of the topic as one file in its folder; the names of the live ones in offset order."""
    folder = bus.root / "topics" / topic / "0"
    live = sorted(Path(uri).name for uri in bus.table(topic).file_uris())
    rows = pa.concat_tables([pq.read_table(folder / one) for one in live])
    if offsets is not None:
        rows = rows.filter(pa.compute.is_in(rows.column("offset"), pa.array(list(offsets), pa.int64())))
    pq.write_table(rows, folder / name)
    return live


def test_files_of_a_job_take_the_place_of_those_that_it_read(bus: Bus) -> None:
    bus.create("job")
    bus.fill("job", 3)
    live = rewrite(bus, "job", "00000000000000000000-job-1.parquet")
    version = bus.admin.swap_files("job", 0, live, ["00000000000000000000-job-1.parquet"])
    assert bus.table("job").version() == version
    assert [Path(uri).name for uri in bus.table("job").file_uris()] == ["00000000000000000000-job-1.parquet"]
    assert [value for _, value in bus.read("job")] == [b"%d" % offset for offset in range(30)]
    assert bus.breaches("job") == []


def test_swap_is_refused_where_the_log_moved_under_the_job(bus: Bus) -> None:
    bus.create("moved")
    bus.fill("moved", 3)
    live = rewrite(bus, "moved", "00000000000000000000-job-2.parquet")
    list(bus.admin.maintain_log("moved", "roll"))
    version = bus.table("moved").version()
    with pytest.raises(BusError, match=re.escape(live[0])) as caught:
        bus.admin.swap_files("moved", 0, live, ["00000000000000000000-job-2.parquet"])
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert bus.table("moved").version() == version
    assert (bus.root / "topics" / "moved" / "0" / "00000000000000000000-job-2.parquet").exists(), (
        "what was prepared is still the job's"
    )


@pytest.mark.parametrize("kind", ["same_rows", "last_of_keys"])
def test_swap_that_would_lose_records_is_refused(bus: Bus, kind: str) -> None:
    topic = f"lossy-{kind}"
    bus.create(topic, cleanup_policy="compact")
    bus.fill(topic, 2)
    live = rewrite(bus, topic, "00000000000000000000-job-3.parquet", offsets=range(19))
    with pytest.raises(BusError, match="19") as caught:
        bus.admin.swap_files(topic, 0, live, ["00000000000000000000-job-3.parquet"], kind)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert len(bus.read(topic)) == 20


def test_swap_of_compacted_files_is_refused_where_the_policy_has_no_compact(bus: Bus) -> None:
    bus.create("whole")
    bus.fill("whole", 2)
    live = rewrite(bus, "whole", "00000000000000000000-job-5.parquet", offsets=range(19, 20))
    with pytest.raises(BusError, match=r"cleanup\.policy") as caught:
        bus.admin.swap_files("whole", 0, live, ["00000000000000000000-job-5.parquet"], "last_of_keys")
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


def test_files_compacted_by_a_job_take_the_place_of_those_that_it_read(bus: Bus) -> None:
    bus.create("lasts", cleanup_policy="compact")
    bus.fill("lasts", 2)
    live = rewrite(bus, "lasts", "00000000000000000000-job-6.parquet", offsets=range(19, 20))
    bus.admin.swap_files("lasts", 0, live, ["00000000000000000000-job-6.parquet"], "last_of_keys")
    rows = bus.table("lasts").to_pyarrow_dataset().to_table(columns=["offset"]).to_pylist()
    assert rows == [{"offset": 19}]
    assert bus.breaches("lasts") == []


def test_swap_never_leaves_the_partitions_folder(bus: Bus) -> None:
    bus.create("inside")
    bus.fill("inside", 2)
    live = rewrite(bus, "inside", "00000000000000000000-job-4.parquet")
    for removes, adds in (
        (live, ["../0/00000000000000000000-job-4.parquet"]),
        (live, [str(bus.root / "topics" / "inside" / "0" / "00000000000000000000-job-4.parquet")]),
        (["../../job/0/" + live[0], live[1]], ["00000000000000000000-job-4.parquet"]),
        (live, []),
        ([], ["00000000000000000000-job-4.parquet"]),
    ):
        with pytest.raises(BusError, match="expected") as caught:
            bus.admin.swap_files("inside", 0, removes, adds)
        assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert len(bus.table("inside").file_uris()) == 2
