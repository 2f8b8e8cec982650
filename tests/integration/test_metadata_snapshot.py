"""The logs of a broker that lives long, or often: files, versions and rows stay few, the metadata's by snapshots."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import bus.sql
from bus.cluster_metadata.cluster_decisions import CreateTopic, DeleteTopic
from bus.cluster_metadata.cluster_records import ProducerNamed, encode_record, replay_cluster
from bus.cluster_metadata.producer_ids import PRODUCER_EPOCH_MAX, ProducerIdentity
from bus.errors import StorageFault
from bus.grpc_api.server.records.produce_decoding import parse_call
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import ProducerStamp
from bus.records.arrow_batches import encode_arrow
from bus.settings.broker import BrokerConfig
from bus.storage_delta.maintenance.cleanup import Cleanup
from bus.storage_delta.root import open_reader
from bus.storage_delta.stores.local import FileSystem, LocalStore
from bus.storage_delta.stores.store import ObjectStore
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.typed_log import replay_values
from bus.storage_delta.verify.verification import verify_root
from tests.support.cancelled_calls import QuietBroker
from tests.support.memory_store import MemoryStore

HOUR_MS = 3_600_000
BEFORE_PRODUCER_IDS = Path(__file__).parents[1] / "golden" / "root_before_producer_ids"
METADATA = "topics/__cluster_metadata/0"
LIVES = 40


@dataclass
class HandClock:
    ms: int = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


def live(
    store: ObjectStore,
    do: Callable[[QuietBroker], Awaitable[None]],
    clock: HandClock | None = None,
    config: BrokerConfig | None = None,
) -> None:
    async def one_life() -> None:
        broker = QuietBroker(store, config, clock)
        await broker.start()
        try:
            await do(broker)
        finally:
            await broker.stop()

    asyncio.run(one_life())


class UnsyncedFileSystem(FileSystem):
    @staticmethod
    def fsync(descriptor: int) -> None:
        """A test of many lives has no power failures."""


def test_lives_that_end_at_once_leave_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives that are shorter than the ticker's first delay, of a bus for which few is fewer than of the real one."""
    for limit in (
        "bus.cluster_metadata.cluster_records._SNAPSHOT_RECORDS_MIN",
        "bus.partition_log.log_life.RUN_FILES_MAX",
        "bus.runtime.metadata.metadata_maintenance._ROLLED_FILES",
        "bus.runtime.partitions.partition_settings.INTERNAL_VERSION_COUNT_MAX",
        "bus.runtime.partitions.partition_maintenance._CLEAN_VERSIONS_MIN",
        "bus.storage_delta.log.checkpoints._COMMITS_BETWEEN_MIN",
    ):
        monkeypatch.setattr(limit, 8)
    clock = HandClock()
    store = LocalStore(str(tmp_path), UnsyncedFileSystem())

    async def create(broker: QuietBroker) -> None:
        await broker.cluster.controller.create_topics([CreateTopic("t", 1, {"delta.log.versions.max": "8"})])

    async def append(broker: QuietBroker) -> None:
        arrow = encode_arrow(pa.record_batch({"value": pa.array([b"v"])}))
        request = pb.ProduceRequest(partitions=[pb.PartitionProduceData(topic="t", arrow=arrow)])
        (answer,) = (await broker.call("ProduceOnce", parse_call(request.SerializeToString()))).partitions
        assert not answer.error_code, answer.error_message

    live(store, create, clock)
    for _ in range(LIVES):
        clock.ms += 60_000
        live(store, append, clock)
    for table in (METADATA, "topics/t/0"):
        versions = list((tmp_path / table / "_delta_log").glob("*.json"))
        data_files = list((tmp_path / table).glob("*.parquet"))
        assert len(versions) < LIVES * 3 // 4, table
        assert len(data_files) < LIVES * 3 // 4, table
    assert [report.breaches for report in verify_root(store)] == [[]] * 2


async def change_often(broker: QuietBroker, times: int = 120) -> None:
    for _ in range(times):
        assert isinstance(await broker.cluster.producers.init("p"), ProducerIdentity)


def test_log_of_many_changes_stays_as_small_as_what_it_says(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))

    async def change(broker: QuietBroker) -> None:
        await broker.cluster.controller.create_topics([CreateTopic("t", 3), CreateTopic("gone", 1)])
        await broker.cluster.controller.delete_topics([DeleteTopic("gone")])
        await change_often(broker, 450)

    live(store, change)
    seen = []

    async def look(broker: QuietBroker) -> None:
        log = broker.cluster.metadata.state
        assert log.high_watermark - log.log_start < 300
        assert log.file_count < 300
        assert log.log_start > 100
        named = broker.cluster.state.producers.by_name.get("p")
        assert named is not None
        assert named.producer_epoch == 449
        seen.append(broker.cluster.state)

    live(store, look)
    (state,) = seen
    # For all who read it: the SDK's tables, SQL, another Delta engine, the verification.
    assert replay_cluster(replay_values(open_reader(str(tmp_path)).open_metadata())) == state
    rows = DeltaTable(tmp_path / METADATA).to_pyarrow_table().sort_by("offset").column("value").to_pylist()
    assert rows[0]["type"] == "SnapshotBegan"
    assert replay_cluster(rows) == state
    with bus.sql.connect(str(tmp_path)) as connection:
        assert connection.sql("select topic, count(*) from partitions group by 1 order by 1").fetchall()
        assert connection.sql("select count(*) from __cluster_metadata").fetchall() == [(len(rows),)]
    assert [report.breaches for report in verify_root(store)] == [[]] * 4


def test_earlier_root_has_a_snapshot_after_its_first_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.cluster_metadata.cluster_records._SNAPSHOT_RECORDS_MIN", 5)
    root = Path(shutil.copytree(BEFORE_PRODUCER_IDS, tmp_path / "root"))
    store = LocalStore(str(root))

    async def look(broker: QuietBroker) -> None:
        assert [*broker.cluster.state.topics] == ["orders"]
        await change_often(broker, 20)

    live(store, look)
    rows = list(replay_values(open_reader(str(root)).open_metadata()))
    assert rows[0]["type"] == "SnapshotBegan"
    live(store, look)


@pytest.mark.parametrize("fails", ["append", "advance_log_start"])
def test_snapshot_that_fails_in_any_of_its_steps_costs_nothing(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    owner: type = DeltaPartitionTable if fails == "append" else Cleanup
    original = getattr(owner, fails)
    failures = []

    def fail(part: object, *args: object, **kwargs: object) -> object:
        if fails == "advance_log_start" or len(args[0][0].columns) > 3:  # type: ignore[index]  # a snapshot
            failures.append(1)
            raise StorageFault("no room")
        return original(part, *args, **kwargs)

    async def try_in_vain(broker: QuietBroker) -> None:
        monkeypatch.setattr(owner, fails, fail)
        await change_often(broker, 230)
        assert broker.cluster.metadata.state.log_start == 0
        assert failures
        assert len(failures) < 5, "tried with every change"
        monkeypatch.undo()

    async def succeed(broker: QuietBroker) -> None:
        await change_often(broker, 1)
        named = broker.cluster.state.producers.by_name.get("p")
        assert named is not None
        assert named.producer_epoch == 230

    live(store, try_in_vain)
    live(store, succeed)

    async def look(broker: QuietBroker) -> None:
        assert broker.cluster.metadata.state.log_start > 0

    live(store, look)


def test_start_writes_one_record_for_all_partitions() -> None:
    store = MemoryStore()

    async def create(broker: QuietBroker) -> None:
        await broker.cluster.controller.create_topics([CreateTopic("t", 50)])

    ends = []

    async def look(broker: QuietBroker) -> None:
        ends.append(broker.cluster.metadata.state.high_watermark)
        epochs = {led.leader_epoch for led in broker.cluster.state.topics["t"].partitions}
        assert epochs == {len(ends)}

    live(store, create)
    for _ in range(3):
        live(store, look)
    assert ends[2] - ends[1] == 4  # elected, registered, unfenced, leader epochs raised


def test_name_that_has_used_up_its_epochs_goes_on_with_a_new_id(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))

    async def use_up(broker: QuietBroker) -> None:
        first = await broker.cluster.producers.init("p")
        assert isinstance(first, ProducerIdentity)
        row = encode_record(ProducerNamed("p", first.producer_id, PRODUCER_EPOCH_MAX, -1))
        broker.cluster.metadata._log.append([row], leader_epoch=99, now_ms=1)

    async def go_on(broker: QuietBroker) -> None:
        first = await broker.cluster.producers.init("p")
        assert isinstance(first, ProducerIdentity)
        assert first.producer_epoch == 0
        assert first.producer_id > 0
        refused = broker.cluster.producers.check(ProducerStamp(0, PRODUCER_EPOCH_MAX, 0))
        assert refused is not None
        assert refused.code.name == "PRODUCER_FENCED"
        assert broker.cluster.producers.check(ProducerStamp(first.producer_id, 0, 0)) is None

    live(store, use_up)
    live(store, go_on)


def test_names_that_are_not_used_expire_and_their_ids_are_fenced_while_those_in_use_stay() -> None:
    store, clock, day_ms = MemoryStore(), HandClock(), 24 * HOUR_MS

    async def name_and_use(broker: QuietBroker) -> None:
        names = broker.cluster.producers
        idle = [await broker.cluster.producers.init(f"idle{number}") for number in range(3)]
        used = await broker.cluster.producers.init("used")
        assert isinstance(used, ProducerIdentity)
        expired = 0
        for _ in range(10):
            clock.ms += day_ms
            assert broker.cluster.producers.check(ProducerStamp(used.producer_id, 0, 0)) is None
            expired += await names.sweep()
        assert expired == 3
        assert [*broker.cluster.state.producers.by_name] == ["used"]
        assert broker.cluster.state.producers.retired.ranges == ((0, 3),)
        for identity in idle:
            assert isinstance(identity, ProducerIdentity)
            refused = broker.cluster.producers.check(ProducerStamp(identity.producer_id, 9, 0))
            assert refused is not None
            assert refused.code.name == "PRODUCER_FENCED"
        again = await broker.cluster.producers.init("idle0")
        assert isinstance(again, ProducerIdentity)
        assert again.producer_id > used.producer_id

    async def come_back(broker: QuietBroker) -> None:
        assert await broker.cluster.producers.sweep() == 0
        assert {*broker.cluster.state.producers.by_name} == {"used", "idle0"}
        assert broker.cluster.producers.check(ProducerStamp(1, 0, 0)) is not None

    live(store, name_and_use, clock)
    clock.ms += 6 * day_ms
    live(store, come_back, clock)


def test_clock_that_jumps_ahead_expires_no_name() -> None:
    clock = HandClock()
    wall = HandClock()
    clock.now_ms = lambda: wall.ms  # type: ignore[method-assign]

    async def jump(broker: QuietBroker) -> None:
        await broker.cluster.producers.init("p")
        assert await broker.cluster.producers.sweep() == 0
        wall.ms += 100 * 24 * HOUR_MS
        clock.ms += HOUR_MS
        assert await broker.cluster.producers.sweep() == 0
        assert [*broker.cluster.state.producers.by_name] == ["p"]

    live(MemoryStore(), jump, clock)
