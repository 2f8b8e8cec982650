"""Roots that earlier versions wrote: opened for ever, and complete afterwards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import bus.sql
from bus.cluster_metadata.cluster_records import ProducerIdsAllocated, encode_record, replay_cluster
from bus.errors import StorageDamaged, StorageFault
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from bus.ports import Committed
from bus.records.log_schema import CLUSTER_METADATA_VALUE_TYPE
from bus.storage_delta.files.data_reader import ReadCache
from bus.storage_delta.log import checkpoints
from bus.storage_delta.log.table_metadata import REMOVED_FILES_STAY, add_new_fields
from bus.storage_delta.root import open_reader, open_storage, open_storage_on
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.typed_log import replay_values
from tests.support.stores import led

# Written by version 0.1.0 before producer ids: two topics, one of them deleted, two starts of a broker.
BEFORE_PRODUCER_IDS = Path(__file__).parents[1] / "golden" / "root_before_producer_ids"
METADATA = f"topics/{CLUSTER_METADATA_TOPIC}/0"
EARLIER = pa.struct(list(CLUSTER_METADATA_VALUE_TYPE)[:11])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BEFORE_PRODUCER_IDS, tmp_path / "root"))


def versions(root: Path) -> list[str]:
    return sorted(path.name for path in (root / METADATA / "_delta_log").glob("*.json"))


def test_reader_takes_an_earlier_root_as_it_is(root: Path) -> None:
    before = versions(root)
    rows = list(replay_values(open_reader(str(root)).open_metadata()))
    state = replay_cluster(rows)
    assert list(state.topics) == ["orders"]
    assert state.topics["orders"].configs == {"retention.ms": "-1", "max.message.bytes": "5000"}
    assert "producer_id" not in rows[0]
    assert versions(root) == before


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_writer_gives_an_earlier_root_the_new_fields_once_and_keeps_every_row(
    root: Path, is_checkpointed: bool
) -> None:
    before = DeltaTable(root / METADATA).to_pyarrow_table().sort_by("offset")
    first = json.loads((root / METADATA / "_delta_log" / f"{0:020}.json").read_text().splitlines()[2])
    count = len(versions(root))
    if is_checkpointed:
        write_checkpoint(root)
    for opening in range(2):
        storage = open_storage(str(root))
        log = led(storage.open_metadata())
        assert log.state.version == count + opening
        next_id = 1000 * (opening + 1)
        row = encode_record(ProducerIdsAllocated(0, next_id))
        assert isinstance(log.append([row], leader_epoch=5, now_ms=1_800_000_000_000), Committed)
        assert replay_cluster(log.replay()).producers.next_producer_id == next_id
        storage.close()

    table = DeltaTable(root / METADATA)
    after = table.to_pyarrow_table().sort_by("offset")
    kept = after.slice(0, before.num_rows)
    for name in before.schema.names:
        expected = before.column(name).to_pylist()
        if name == "value":
            new = dict.fromkeys(CLUSTER_METADATA_VALUE_TYPE.names[11:])
            expected = [{**value, **new} for value in expected]
        assert kept.column(name).to_pylist() == expected, name
    change = json.loads((root / METADATA / "_delta_log" / f"{count:020}.json").read_text().splitlines()[1])
    for name in ("id", "createdTime", "partitionColumns", "format"):
        assert change["metaData"][name] == first["metaData"][name]
    assert change["metaData"]["configuration"] == {**first["metaData"]["configuration"], **REMOVED_FILES_STAY}


def test_first_broker_of_an_earlier_root_gives_its_metadata_the_new_fields(root: Path) -> None:
    open_storage(str(root), broker_id=1).close()
    assert json.loads((root / "bus-root.json").read_text())["format_version"] == 2
    rows = list(replay_values(open_reader(str(root)).open_metadata()))
    assert tuple(rows[0]) == tuple(CLUSTER_METADATA_VALUE_TYPE.names)
    before = versions(root)
    storage = open_storage(str(root), broker_id=2)
    assert replay_cluster(storage.open_metadata().replay()) == replay_cluster(rows)
    storage.close()
    assert versions(root) == before


def test_files_of_an_upgraded_log_all_have_its_fields(root: Path) -> None:
    storage = open_storage(str(root))
    log = led(storage.open_metadata())
    log.append([encode_record(ProducerIdsAllocated(0, 1000))], leader_epoch=5, now_ms=1_800_000_000_000)
    storage.close()
    files = DeltaTable(root / METADATA).file_uris()
    assert len(files) == 2
    assert {tuple(pq.read_schema(file).field("value").type.names) for file in files} == {
        tuple(CLUSTER_METADATA_VALUE_TYPE.names)
    }
    with bus.sql.connect(str(root)) as connection:
        query = "SELECT offset, value.next_producer_id FROM __cluster_metadata ORDER BY offset"
        assert [row[1] for row in connection.sql(query).fetchall()] == [*[None] * 10, 1000]
    with bus.sql.connect(str(root), at_version=6) as connection:
        assert connection.sql("SELECT count(value.type) FROM __cluster_metadata").fetchall() == [(10,)]


def test_upgrade_that_another_writer_was_faster_with_is_refused_and_done_at_the_next_opening(root: Path) -> None:
    store = RacingStore(LocalStore(str(root)))
    with pytest.raises(StorageFault, match="could not be brought up to date: Conflicted"):
        led(open_storage_on(store).open_metadata())  # type: ignore[arg-type]
    store.lock_taken.release()
    storage = open_storage(str(root))
    assert led(storage.open_metadata()).state.high_watermark == 10
    storage.close()


def test_log_with_other_fields_is_damage_and_stays_as_it_is(root: Path) -> None:
    before = versions(root)
    other = pa.struct([pa.field("colour", pa.string())])
    add_new_fields(LocalStore(str(root)), METADATA, other, ReadCache())
    assert versions(root) == before
    with pytest.raises(StorageDamaged, match="expected the columns of the log"):
        open_reader(str(root)).open_partition(TopicPartition(CLUSTER_METADATA_TOPIC, 0), value_type=other)


def write_checkpoint(root: Path) -> None:
    store = LocalStore(str(root))
    cluster_id = json.loads((root / "bus-root.json").read_text())["cluster_id"]
    table = DeltaPartitionTable(store, METADATA, topic_id=cluster_id, cache=ReadCache(), value_type=EARLIER)
    paths = [file.path for file in table.rewrites.files]
    checkpoints.write_checkpoint(store, METADATA, version=table.state.version, base_version=-1, paths=paths)
    for path in (root / METADATA / "_delta_log").glob("*.json"):
        path.unlink()  # the checkpoint is all there is


class RacingStore:
    """Creates the next version itself when it is asked to, with the bytes of somebody else."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def lock(self, key: str, holder: str, *, is_shared: bool = False) -> object:
        self.lock_taken = self._store.lock(key, holder, is_shared=is_shared)
        return self.lock_taken

    def create(self, key: str, data: bytes) -> None:
        if key.endswith(".json"):
            self._store.create(key, b'{"commitInfo":{"operation":"OPTIMIZE","engineInfo":"another"}}\n')
        self._store.create(key, data)
