"""Sizes of logs in the root, as their leaders answer them, over a storage in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from bus.broker_api.maintenance import MaintenanceApi, replicas_on
from bus.cluster_metadata.cluster_records import (
    BrokerRegistered,
    ControllerElected,
    FeatureLevel,
    LeaderChanged,
    ReplicasAssigned,
    TopicCreated,
    apply_all,
)
from bus.cluster_metadata.cluster_state import BUS_VERSION, EMPTY_CLUSTER
from bus.descriptions import LogDirDescription, ReplicaInfo
from bus.errors import ErrorCode, Refused, StorageFault
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.ports import TableFiles, Volume
from bus.runtime.tasks import LoopShares
from tests.support.api_bench import open_access

METADATA = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
T_0, T_1, U_0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
# Broker 0 leads t-0 and is the controller, broker 1 leads t-1 and follows t-0, broker 2 has u alone.
STATE = apply_all(
    EMPTY_CLUSTER,
    [
        FeatureLevel(BUS_VERSION, 1),
        *(BrokerRegistered(broker, "h", 1) for broker in (0, 1, 2)),
        ControllerElected(0, "life"),
        TopicCreated("t", "id-t", 2, 0),
        ReplicasAssigned("t", "id-t", 0, 1, "0,1"),
        LeaderChanged("t", "id-t", 1, 1, 1),
        TopicCreated("u", "id-u", 1, 2),
    ],
)
FOLLOWER = ReplicaInfo(False, 0, 0, 0)
FILES = TableFiles(file_count=7, size_bytes=1_000, data_bytes=900)


def leader(reclaimable_bytes: int | None) -> ReplicaInfo:
    """Return the replica with `FILES`."""
    return ReplicaInfo(True, FILES.size_bytes, FILES.file_count, reclaimable_bytes)


class FakeStorage:
    """Every folder has `FILES`, but for those with a fault."""

    root_url = "/root"

    def __init__(self, faults: Sequence[TopicPartition] = (), volume: Volume | Exception | None = None) -> None:
        self.faults = faults
        self.volume = volume
        self.measured: list[TopicPartition] = []

    def measure_volume(self) -> Volume | None:
        if isinstance(self.volume, Exception):
            raise self.volume
        return self.volume

    def measure_files(self, name: TopicPartition) -> TableFiles:
        self.measured.append(name)
        if name in self.faults:
            raise StorageFault("Permission denied")
        return FILES


class FakeCalls:
    """Notes how many tables each call into a thread has measured."""

    def __init__(self, storage: FakeStorage) -> None:
        self._storage = storage
        self.counts: list[int] = []

    async def housekeep(self, call: Any) -> Any:
        before = len(self._storage.measured)
        result = call()
        self.counts.append(len(self._storage.measured) - before)
        return result


def describe(
    storage: FakeStorage, *topics: str, state: Any = STATE, live: Any = None, broker_id: int = 0
) -> tuple[LogDirDescription, list[int]]:
    """`live`: the bytes of the last version by partition, or why the partition is not open."""

    def find(name: TopicPartition) -> Any:
        found = (live or {}).get(name, 600)
        return found if isinstance(found, Refused) else SimpleNamespace(live_bytes=found)

    cluster: Any = SimpleNamespace(
        storage=storage,
        endpoint=SimpleNamespace(broker_id=broker_id),
        state=state,
        host=SimpleNamespace(find=find),
        metadata=SimpleNamespace(state=SimpleNamespace(size_bytes=850)),
    )
    calls: Any = FakeCalls(storage)
    unused: Any = None
    api = MaintenanceApi(cluster, unused, LoopShares(), calls, jobs_max=1, request_timeout_ms=1)
    found = asyncio.run(api.describe_log_dirs(open_access("DescribeLogDirs"), topics))
    assert not isinstance(found, Refused)
    return found["/root"], calls.counts


def test_each_broker_has_the_partitions_that_it_leads_or_follows_and_the_controller_the_metadata() -> None:
    assert list(replicas_on(0, STATE, ())) == [(METADATA, True), (T_0, True)]
    assert list(replicas_on(1, STATE, ())) == [(T_0, False), (T_1, True)]
    assert list(replicas_on(2, STATE, ())) == [(U_0, True)]


def test_topics_that_are_named_are_described_once_and_unknown_ones_left_out() -> None:
    assert list(replicas_on(1, STATE, ["t", "nowhere", "t"])) == [(T_0, False), (T_1, True)]
    assert list(replicas_on(0, STATE, ["u"])) == []
    assert list(replicas_on(0, STATE, [CLUSTER_METADATA_TOPIC])) == [(METADATA, True)]


def test_a_root_of_one_broker_has_no_elected_controller_and_its_metadata_all_the_same() -> None:
    state = apply_all(EMPTY_CLUSTER, [BrokerRegistered(0, "h", 1), TopicCreated("t", "id-t", 1, 0)])
    assert list(replicas_on(0, state, ())) == [(METADATA, True), (T_0, True)]


def test_files_are_counted_by_the_leader_alone_and_what_the_last_version_lacks_is_reclaimable() -> None:
    storage = FakeStorage(volume=Volume(10_000, 4_000))
    found, _ = describe(storage, broker_id=1)
    assert found == LogDirDescription(10_000, 4_000, {T_0: FOLLOWER, T_1: leader(300)})
    assert storage.measured == [T_1]


def test_metadata_are_measured_as_any_log() -> None:
    found, _ = describe(FakeStorage(), CLUSTER_METADATA_TOPIC)
    assert found.replica_infos == {METADATA: leader(50)}


def test_a_file_that_was_committed_after_the_count_makes_nothing_reclaimable() -> None:
    found, _ = describe(FakeStorage(), "t", live={T_0: 901})
    assert found.replica_infos == {T_0: leader(0)}


def test_a_partition_that_is_not_open_has_its_size_and_nothing_is_said_of_what_could_go() -> None:
    refused = Refused(ErrorCode.KAFKA_STORAGE_ERROR, "t-0: damaged")
    found, _ = describe(FakeStorage(), "t", live={T_0: refused})
    assert found.replica_infos == {T_0: leader(None)}


def test_a_folder_that_cannot_be_read_costs_its_own_partition_and_no_other() -> None:
    found, _ = describe(FakeStorage(faults=[T_0]))
    refused = Refused(ErrorCode.KAFKA_STORAGE_ERROR, "t-0: Permission denied")
    assert found.replica_infos == {METADATA: leader(50), T_0: ReplicaInfo(True, 0, 0, 0, refused)}


def test_a_volume_that_does_not_answer_is_an_error_of_its_own() -> None:
    found, _ = describe(FakeStorage(volume=StorageFault("Stale file handle")), "t")
    assert (found.total_bytes, found.usable_bytes) == (None, None)
    assert found.error == Refused(ErrorCode.KAFKA_STORAGE_ERROR, "Stale file handle")
    assert found.replica_infos == {T_0: leader(300)}


def test_of_a_thousand_partitions_a_few_are_measured_at_a_time() -> None:
    """Checkpoints and deletions wait in the same line, and a caller that goes away leaves the rest."""
    state = apply_all(EMPTY_CLUSTER, [BrokerRegistered(0, "h", 1), TopicCreated("many", "id", 1_000, 0)])
    storage = FakeStorage()
    found, counts = describe(storage, "many", state=state)
    assert len(found.replica_infos) == len(set(storage.measured)) == 1_000
    assert max(counts) <= 16
