"""Each promise of the log broken once, by hand, in a table that the bus wrote: the verification has to name it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from bus.cluster_metadata.cluster_records import BrokerRegistered, TopicCreated, encode_record
from bus.model import CLUSTER_METADATA_TOPIC, LogBatch, TimestampType, TopicPartition
from bus.ports import Committed, ProducerProgress
from bus.storage_delta.root import open_storage
from bus.storage_delta.stores.local import LocalStore
from bus.storage_delta.verify.verification import Report, verify_partition, verify_root
from tests.support.stores import led

NOW_MS = 1_700_000_000_000
TOPIC_ID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
PARTITION = TopicPartition("orders", 0)
COUNT = 10  # records of a commit
CHECKPOINT_VERSION = 3
LAST_VERSION = 6


def _batch(base_offset: int, leader_epoch: int) -> LogBatch:
    offsets = range(base_offset, base_offset + COUNT)
    columns = {
        "key": pa.array([b"k%d" % offset for offset in offsets], pa.binary()),
        "value": pa.array([b"value %d" % offset for offset in offsets], pa.binary()),
        "timestamp": pa.array([(NOW_MS + offset) * 1000 + 7 for offset in offsets], pa.timestamp("us", "UTC")),
        "producer_id": pa.array([5] * COUNT, pa.int64()),
        "producer_epoch": pa.array([1] * COUNT, pa.int16()),
        "sequence": pa.array(list(offsets), pa.int32()),
    }
    return LogBatch(
        base_offset=base_offset,
        next_offset=base_offset + COUNT,
        record_count=COUNT,
        size_bytes=1_000,
        leader_epoch=leader_epoch,
        timestamp_type=TimestampType.CREATE_TIME,
        timestamp_ms=None,
        timestamp_max_ms=NOW_MS + base_offset + COUNT,
        columns=pa.RecordBatch.from_pydict(columns),
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with one topic of one partition: versions 0 to 6, a checkpoint of version 3, a change of leader."""
    root = tmp_path_factory.mktemp("template") / "root"
    storage = open_storage(str(root))
    metadata = led(storage.open_metadata())
    rows = [
        encode_record(BrokerRegistered(0, "127.0.0.1", 9094)),
        encode_record(TopicCreated(PARTITION.topic, TOPIC_ID, 1, 0)),
        {"type": "LeaderChanged", "topic": PARTITION.topic, "topic_id": TOPIC_ID, "partition": 0, "broker_id": 0,
         "leader_epoch": 1},
    ]  # fmt: skip
    assert isinstance(metadata.append(rows, leader_epoch=0, now_ms=NOW_MS), Committed)
    table = led(storage.create_partition(PARTITION, topic_id=TOPIC_ID))
    for number in range(LAST_VERSION):
        leader_epoch = 0 if number < 4 else 1
        base_offset = number * COUNT
        outcome = table.append(
            [_batch(base_offset, leader_epoch)],
            leader_epoch=leader_epoch,
            now_ms=NOW_MS,
            producers=[ProducerProgress(5, 1, base_offset + COUNT - 1)],
        )
        assert isinstance(outcome, Committed), outcome
        if outcome.version == CHECKPOINT_VERSION:
            table.cleanup.write_checkpoint()
    storage.close()
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "root"))


@pytest.fixture
def folder(root: Path) -> Path:
    return root / "topics" / "orders" / "0"


def verify(root: Path) -> Report:
    return verify_partition(LocalStore(str(root)), PARTITION, topic_id=TOPIC_ID)


def version_path(folder: Path, version: int) -> Path:
    return folder / "_delta_log" / f"{version:020d}.json"


def read_actions(folder: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in version_path(folder, version).read_text().splitlines()]


def write_actions(folder: Path, version: int, actions: list[dict[str, Any]]) -> None:
    version_path(folder, version).write_text("".join(json.dumps(action) + "\n" for action in actions))


def edit(folder: Path, version: int, kind: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the bodies of one kind of action in a version file."""
    actions = read_actions(folder, version)
    for action in actions:
        if kind in action:
            change(action[kind])
    write_actions(folder, version, actions)


def data_file(folder: Path, version: int) -> Path:
    (path,) = [action["add"]["path"] for action in read_actions(folder, version) if "add" in action]
    return folder / path


def edit_stats(folder: Path, version: int, change: Callable[[dict[str, Any]], object]) -> None:
    def change_stats(add: dict[str, Any]) -> None:
        stats = json.loads(add["stats"])
        change(stats)
        add["stats"] = json.dumps(stats)

    edit(folder, version, "add", change_stats)


def rewrite_data(folder: Path, version: int, change: Callable[[pa.Table], pa.Table]) -> None:
    """Other rows in a data file, whose entry keeps telling its size truly."""
    path = data_file(folder, version)
    pq.write_table(change(pq.read_table(path)), path)
    edit(folder, version, "add", lambda add: add.update(size=path.stat().st_size))


def set_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    index = table.schema.get_field_index(name)
    return table.set_column(index, name, pa.array(values, table.schema.field(name).type))


def test_table_that_keeps_every_promise_has_no_breach_and_its_figures(root: Path) -> None:
    report = verify(root)
    assert report.breaches == []
    assert (report.version, report.version_count, report.checkpoint_count) == (LAST_VERSION, 7, 1)
    assert (report.file_count, report.record_count, report.leader_epoch) == (6, 60, 1)
    assert list(report.notes) == []


def test_root_is_judged_with_its_metadata(root: Path) -> None:
    reports = list(verify_root(LocalStore(str(root))))
    assert [(str(report.partition), list(report.breaches)) for report in reports] == [
        (f"{CLUSTER_METADATA_TOPIC}-0", []),
        ("orders-0", []),
    ]


def test_verification_writes_nothing_and_leaves_no_lock(root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    list(verify_root(LocalStore(str(root))))
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_log_that_begins_with_a_checkpoint_is_judged_from_there(root: Path, folder: Path) -> None:
    for version in range(CHECKPOINT_VERSION + 1):
        version_path(folder, version).unlink()
    report = verify(root)
    assert report.breaches == []
    assert report.record_count == 60


def test_data_file_that_no_version_names_is_a_note_and_no_breach(root: Path, folder: Path) -> None:
    (folder / "00000000000000000060-left-by-a-crash.parquet").write_bytes(b"half")
    report = verify(root)
    assert report.breaches == []
    assert "00000000000000000060-left-by-a-crash.parquet" in report.notes[0]


# ------------------------------------------------------------------ one breach each


def _gap(folder: Path) -> None:
    version_path(folder, 5).unlink()


def _beginning_is_gone(folder: Path) -> None:
    shutil.rmtree(folder / "_delta_log")
    (folder / "_delta_log").mkdir()


def _first_versions_gone_without_checkpoint(folder: Path) -> None:
    version_path(folder, 0).unlink()
    (folder / "_delta_log" / f"{CHECKPOINT_VERSION:020d}.checkpoint.parquet").unlink()
    (folder / "_delta_log" / "_last_checkpoint").unlink()


def _torn(folder: Path) -> None:
    path = version_path(folder, LAST_VERSION)
    path.write_bytes(path.read_bytes()[:-20])


def _cut_at_a_line(folder: Path) -> None:
    write_actions(folder, LAST_VERSION, [a for a in read_actions(folder, LAST_VERSION) if "txn" not in a])


def _empty(folder: Path) -> None:
    version_path(folder, LAST_VERSION).write_bytes(b"")


def _same_add_twice(folder: Path) -> None:
    actions = read_actions(folder, 5)
    write_actions(folder, 5, [*actions, *(action for action in actions if "add" in action)])


def _txn_twice(folder: Path) -> None:
    actions = read_actions(folder, 5)
    write_actions(folder, 5, [*actions, next(action for action in actions if "txn" in action)])


def _add_of_a_live_file(folder: Path) -> None:
    (added,) = [action for action in read_actions(folder, 4) if "add" in action]
    actions = [action for action in read_actions(folder, 5) if "add" not in action]
    write_actions(folder, 5, [*actions, added])


def _remove_of_nothing(folder: Path) -> None:
    remove = {"remove": {"path": "nobody.parquet", "dataChange": True, "deletionTimestamp": NOW_MS}}
    write_actions(folder, 5, [*read_actions(folder, 5), remove])


def _version_copied(folder: Path) -> None:
    shutil.copy(version_path(folder, LAST_VERSION), version_path(folder, LAST_VERSION + 1))


def _offsets_leave_a_hole(folder: Path) -> None:
    def shift(stats: dict[str, Any]) -> None:
        stats["minValues"]["offset"] += 5
        stats["maxValues"]["offset"] += 5

    edit_stats(folder, 5, shift)


def _leader_epoch_goes_back(folder: Path) -> None:
    edit(folder, LAST_VERSION, "commitInfo", lambda info: info.update(leaderEpoch=0))


def _high_watermark_lies(folder: Path) -> None:
    def lie(txn: dict[str, Any]) -> None:
        if txn["appId"] == "bus/high_watermark":
            txn["version"] += 1

    edit(folder, LAST_VERSION, "txn", lie)


def _producer_epoch_goes_back(folder: Path) -> None:
    def step_back(txn: dict[str, Any]) -> None:
        if txn["appId"] == "bus/5":
            txn["version"] -= 1 << 32

    edit(folder, LAST_VERSION, "txn", step_back)


def _rewriting_loses_offsets(folder: Path) -> None:
    """A compaction of the first two files that keeps the first file's offsets only."""
    first, second = data_file(folder, 1).name, data_file(folder, 2).name
    (add,) = [action["add"] for action in read_actions(folder, 1) if "add" in action]
    shutil.copy(folder / first, folder / "compacted.parquet")
    removes = [{"remove": {"path": path, "dataChange": False, "deletionTimestamp": 1}} for path in (first, second)]
    compacted = {**add, "path": "compacted.parquet", "dataChange": False, "tags": None}
    info = {"commitInfo": {"timestamp": NOW_MS, "operation": "OPTIMIZE", "engineInfo": "another"}}
    write_actions(folder, LAST_VERSION + 1, [info, *removes, {"add": compacted}])


def _retention_takes_the_middle(folder: Path) -> None:
    info = {"commitInfo": {"timestamp": NOW_MS, "operation": "DELETE", "engineInfo": "another"}}
    gone = {"remove": {"path": data_file(folder, 3).name, "dataChange": True, "deletionTimestamp": 1}}
    write_actions(folder, LAST_VERSION + 1, [info, gone])


def _newer_protocol(folder: Path) -> None:
    edit(folder, 0, "protocol", lambda protocol: protocol.update(minReaderVersion=3, minWriterVersion=7))


def _other_column_type(folder: Path) -> None:
    def change(metadata: dict[str, Any]) -> None:
        metadata["schemaString"] = metadata["schemaString"].replace('"short"', '"integer"')

    edit(folder, 0, "metaData", change)


def _column_with_another_key(folder: Path) -> None:
    def change(metadata: dict[str, Any]) -> None:
        metadata["schemaString"] = metadata["schemaString"].replace('"nullable"', '"nullabme"', 1)

    edit(folder, 0, "metaData", change)


def _schema_of_another_kind(folder: Path) -> None:
    def change(metadata: dict[str, Any]) -> None:
        metadata["schemaString"] = metadata["schemaString"].replace('"struct"', '"strict"', 1)

    edit(folder, 0, "metaData", change)


def _other_topic(folder: Path) -> None:
    edit(folder, 0, "metaData", lambda metadata: metadata["configuration"].update({"bus.topic_id": "another"}))


def _checkpoint_truncated(folder: Path) -> None:
    path = folder / "_delta_log" / f"{CHECKPOINT_VERSION:020d}.checkpoint.parquet"
    path.write_bytes(path.read_bytes()[:-100])


def _checkpoint_forgets_a_file(folder: Path) -> None:
    path = folder / "_delta_log" / f"{CHECKPOINT_VERSION:020d}.checkpoint.parquet"
    table = pq.read_table(path)
    paths = pc.struct_field(table.column("add"), "path")
    pq.write_table(table.filter(pc.fill_null(pc.not_equal(paths, data_file(folder, 2).name), True)), path)


def _last_checkpoint_dangles(folder: Path) -> None:
    (folder / "_delta_log" / "_last_checkpoint").write_text('{"version": 5, "size": 9}')


def _last_checkpoint_is_garbage(folder: Path) -> None:
    (folder / "_delta_log" / "_last_checkpoint").write_text("{")


def _data_file_gone(folder: Path) -> None:
    data_file(folder, 2).unlink()


def _data_file_longer(folder: Path) -> None:
    path = data_file(folder, 2)
    path.write_bytes(path.read_bytes() + b"\0")


def _data_file_damaged(folder: Path) -> None:
    path = data_file(folder, 2)
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56  # the header of the first page
    path.write_bytes(data)


def _data_file_written_anew(folder: Path) -> None:
    rewrite_data(folder, 2, lambda table: table)


def _bit_of_a_value_flipped(folder: Path) -> None:
    path = data_file(folder, 2)
    data = bytearray(path.read_bytes())
    data[data.index(b"value 15")] ^= 1
    path.write_bytes(data)


def _data_file_lacks_a_column(folder: Path) -> None:
    rewrite_data(folder, 2, lambda table: table.drop_columns(["sequence"]))


def _data_file_with_another_type(folder: Path) -> None:
    def widen(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index("sequence")
        return table.set_column(index, "sequence", table.column("sequence").cast(pa.int64()))

    rewrite_data(folder, 2, widen)


def _offset_twice_inside(folder: Path) -> None:
    rewrite_data(folder, 2, lambda table: set_column(table, "offset", [10, 11, 12, 12, 14, 15, 16, 17, 18, 19]))


def _offset_missing_inside(folder: Path) -> None:
    rewrite_data(folder, 2, lambda table: set_column(table, "offset", [10, 11, 12, 99, 14, 15, 16, 17, 18, 19]))


def _offset_order_inside(folder: Path) -> None:
    rewrite_data(folder, 2, lambda table: set_column(table, "offset", [10, 12, 11, 13, 14, 15, 16, 17, 18, 19]))


def _rows_are_lost(folder: Path) -> None:
    rewrite_data(folder, 2, lambda table: table.slice(0, COUNT - 1))


def _epoch_goes_back_inside(folder: Path) -> None:
    rewrite_data(folder, 2, lambda table: set_column(table, "leader_epoch", [0] * 5 + [1] + [0] * 4))


def _epoch_below_that_of_the_file_before(folder: Path) -> None:
    rewrite_data(folder, 1, lambda table: set_column(table, "leader_epoch", [1] * COUNT))


def _null_timestamp(folder: Path) -> None:
    def forget(table: pa.Table) -> pa.Table:
        return set_column(table, "timestamp", [None, *table.column("timestamp").to_pylist()[1:]])

    rewrite_data(folder, 2, forget)


def _null_leader_epoch(folder: Path) -> None:
    rewrite_data(folder, 2, lambda table: set_column(table, "leader_epoch", [0] * 9 + [None]))


def _unknown_timestamp_type(folder: Path) -> None:
    rewrite_data(folder, 2, lambda table: set_column(table, "timestamp_type", [7] * COUNT))


def _timestamp_maximum_lies(folder: Path) -> None:
    edit_stats(folder, 5, lambda stats: stats["maxValues"].update(timestamp="2023-11-14T22:13:20.000Z"))


def _timestamp_minimum_lies(folder: Path) -> None:
    edit_stats(folder, 5, lambda stats: stats["minValues"].update(timestamp="2023-11-14T22:13:21.000Z"))


def _sequence_maximum_lies(folder: Path) -> None:
    edit_stats(folder, 5, lambda stats: stats["maxValues"].update(sequence=3))


def _null_count_lies(folder: Path) -> None:
    edit_stats(folder, 5, lambda stats: stats["nullCount"].update(producer_id=1))


def _record_count_lies(folder: Path) -> None:
    edit_stats(folder, 5, lambda stats: stats.update(numRecords=9))


def _tag_lies(folder: Path) -> None:
    edit(folder, 5, "add", lambda add: add["tags"].update({"bus.file": "40 50 10 1 2 1"}))


def _spans_leave_rows_out(folder: Path) -> None:
    def narrow(add: dict[str, Any]) -> None:
        assert add["tags"]["bus.file"].endswith(" 1 5 0 1 0 40 9")
        add["tags"]["bus.file"] = add["tags"]["bus.file"].removesuffix("9") + "8"

    edit(folder, 5, "add", narrow)


def _set_sequences(folder: Path, sequences: list[int | None]) -> None:
    rewrite_data(folder, 2, lambda table: set_column(table, "sequence", sequences))


def _sequence_twice(folder: Path) -> None:
    _set_sequences(folder, [10, 11, 12, 12, 13, 14, 15, 16, 17, 18])


def _sequences_of_the_file_before(folder: Path) -> None:
    _set_sequences(folder, list(range(10)))


def _sequences_skip_one_between_files(folder: Path) -> None:
    _set_sequences(folder, list(range(11, 21)))


def _sequences_out_of_order(folder: Path) -> None:
    _set_sequences(folder, [10, 12, 11, 13, 14, 15, 16, 17, 18, 19])


def _sequence_is_null(folder: Path) -> None:
    _set_sequences(folder, [10, 11, None, 13, 14, 15, 16, 17, 18, 19])


def _producer_epoch_falls_inside(folder: Path) -> None:
    rewrite_data(folder, 2, lambda table: set_column(table, "producer_epoch", [2] * 5 + [1] * 5))


def _producer_epoch_falls_between_files(folder: Path) -> None:
    rewrite_data(folder, 2, lambda table: set_column(table, "producer_epoch", [0] * 10))


def _higher_epoch_begins_anywhere(folder: Path) -> None:
    def begin(table: pa.Table) -> pa.Table:
        table = set_column(table, "producer_epoch", [1] * 5 + [2] * 5)
        return set_column(table, "sequence", [10, 11, 12, 13, 14, 3, 4, 5, 6, 7])

    rewrite_data(folder, 2, begin)


def _txn_of_a_producer_lies(folder: Path) -> None:
    def lie(txn: dict[str, Any]) -> None:
        if txn["appId"] == "bus/5":
            txn["version"] -= 1

    edit(folder, LAST_VERSION, "txn", lie)


def _txn_of_a_producer_is_lost(folder: Path) -> None:
    for version in range(1, LAST_VERSION + 1):
        kept = [each for each in read_actions(folder, version) if each.get("txn", {}).get("appId") != "bus/5"]
        write_actions(folder, version, kept)


def _txn_of_a_producer_without_records(folder: Path) -> None:
    txn = {"txn": {"appId": "bus/77", "version": 3, "lastUpdated": NOW_MS}}
    write_actions(folder, LAST_VERSION, [*read_actions(folder, LAST_VERSION), txn])


SEQUENCES_FOLLOW = "producers' sequences follow each other"
BREACHES: list[tuple[Callable[[Path], None], str, str, int | None]] = [
    (_gap, "versions are contiguous", "00000000000000000005.json", 5),
    (_beginning_is_gone, "a table is there", "_delta_log", None),
    (_first_versions_gone_without_checkpoint, "versions are contiguous", "_delta_log", 0),
    (_torn, "versions are whole", "00000000000000000006.json", 6),
    (_cut_at_a_line, "versions are whole", "00000000000000000006.json", 6),
    (_empty, "versions are whole", "00000000000000000006.json", 6),
    (_same_add_twice, "commits follow the protocol", "00000000000000000005.json", 5),
    (_txn_twice, "commits follow the protocol", "00000000000000000005.json", 5),
    (_add_of_a_live_file, "commits follow the protocol", "00000000000000000005.json", 5),
    (_remove_of_nothing, "commits follow the protocol", "00000000000000000005.json", 5),
    (_version_copied, "commits are there once", "00000000000000000007.json", 7),
    (_offsets_leave_a_hole, "offsets are dense", "00000000000000000005.json", 5),
    (_leader_epoch_goes_back, "leader epochs never go back", "00000000000000000006.json", 6),
    (_high_watermark_lies, "the high watermark is true", "00000000000000000006.json", 6),
    (_producer_epoch_goes_back, "producer epochs never go back", "00000000000000000006.json", 6),
    (_rewriting_loses_offsets, "rewriting keeps offsets", "00000000000000000007.json", 7),
    (_retention_takes_the_middle, "retention takes the oldest", "00000000000000000007.json", 7),
    (_newer_protocol, "every engine can read it", "00000000000000000000.json", 0),
    (_other_column_type, "the table has the log's columns", "00000000000000000000.json", 0),
    (_column_with_another_key, "the table has the log's columns", "00000000000000000000.json", 0),
    (_schema_of_another_kind, "the table has the log's columns", "00000000000000000000.json", 0),
    (_other_topic, "the table is this partition's", "00000000000000000000.json", 0),
    (_checkpoint_truncated, "checkpoints are readable", "00000000000000000003.checkpoint.parquet", 3),
    (_checkpoint_forgets_a_file, "checkpoints equal a replay", "00000000000000000003.checkpoint.parquet", 3),
    (_last_checkpoint_dangles, "_last_checkpoint points to a checkpoint", "_last_checkpoint", 5),
    (_last_checkpoint_is_garbage, "_last_checkpoint points to a checkpoint", "_last_checkpoint", None),
    (_data_file_gone, "live files are there", "00000000000000000010-", 2),
    (_data_file_longer, "sizes are exact", "00000000000000000010-", 2),
    (_data_file_damaged, "live files are readable", "00000000000000000010-", 2),
    (_data_file_written_anew, "checksums are true", "00000000000000000010-", 2),
    (_bit_of_a_value_flipped, "live files are readable", "00000000000000000010-", 2),
    (_data_file_lacks_a_column, "files have the table's columns", "00000000000000000010-", 2),
    (_data_file_with_another_type, "files have the table's columns", "00000000000000000010-", 2),
    (_offset_twice_inside, "offsets are dense", "00000000000000000010-", 2),
    (_offset_missing_inside, "offsets are dense", "00000000000000000010-", 2),
    (_offset_order_inside, "offsets are dense", "00000000000000000010-", 2),
    (_rows_are_lost, "statistics are true", "00000000000000000010-", 2),
    (_epoch_goes_back_inside, "leader epochs never go back", "00000000000000000010-", 2),
    (_epoch_below_that_of_the_file_before, "leader epochs never go back", "00000000000000000010-", 2),
    (_null_timestamp, "no offset, timestamp, type or epoch is null", "00000000000000000010-", 2),
    (_null_leader_epoch, "no offset, timestamp, type or epoch is null", "00000000000000000010-", 2),
    (_unknown_timestamp_type, "timestamp types are known", "00000000000000000010-", 2),
    (_timestamp_maximum_lies, "statistics are true", "00000000000000000040-", 5),
    (_timestamp_minimum_lies, "statistics are true", "00000000000000000040-", 5),
    (_sequence_maximum_lies, "statistics are true", "00000000000000000040-", 5),
    (_null_count_lies, "statistics are true", "00000000000000000040-", 5),
    (_record_count_lies, "statistics are true", "00000000000000000040-", 5),
    (_tag_lies, "statistics are true", "00000000000000000040-", 5),
    (_spans_leave_rows_out, "statistics are true", "00000000000000000040-", 5),
    (_sequence_twice, SEQUENCES_FOLLOW, "00000000000000000010-", 2),
    (_sequences_of_the_file_before, SEQUENCES_FOLLOW, "00000000000000000010-", 2),
    (_sequences_skip_one_between_files, SEQUENCES_FOLLOW, "00000000000000000010-", 2),
    (_sequences_out_of_order, SEQUENCES_FOLLOW, "00000000000000000010-", 2),
    (_sequence_is_null, "producers have id, epoch and sequence", "00000000000000000010-", 2),
    (_producer_epoch_falls_inside, SEQUENCES_FOLLOW, "00000000000000000010-", 2),
    (_producer_epoch_falls_between_files, SEQUENCES_FOLLOW, "00000000000000000010-", 2),
    (_higher_epoch_begins_anywhere, SEQUENCES_FOLLOW, "00000000000000000010-", 2),
    (_txn_of_a_producer_lies, "the log tells where producers ended", "00000000000000000050-", 6),
    (_txn_of_a_producer_is_lost, "the log tells where producers ended", "00000000000000000050-", 6),
    (_txn_of_a_producer_without_records, "the log tells where producers ended", "_delta_log", 6),
]


@pytest.mark.parametrize(
    ("damage", "promise", "file", "version"), BREACHES, ids=[damage.__name__[1:] for damage, *_ in BREACHES]
)
def test_broken_promise_is_found_with_its_file_and_version(
    root: Path, folder: Path, damage: Callable[[Path], None], promise: str, file: str, version: int | None
) -> None:
    damage(folder)
    breaches = verify(root).breaches
    matching = [breach for breach in breaches if breach.promise == promise and file in breach.file]
    assert matching, [str(breach) for breach in breaches]
    assert {breach.version for breach in matching} == {version}
    for breach in matching:
        assert breach.expected
        assert breach.found
        assert "\n" not in str(breach)


def test_data_file_is_not_opened_where_nobody_asks_for_it(root: Path, folder: Path) -> None:
    _data_file_damaged(folder)
    assert verify_partition(LocalStore(str(root)), PARTITION, has_data_files=False).breaches == []


def test_leader_epoch_that_the_metadata_does_not_know_is_a_breach(root: Path, folder: Path) -> None:
    edit(folder, LAST_VERSION, "commitInfo", lambda info: info.update(leaderEpoch=9))
    edit(folder, LAST_VERSION, "txn", lambda txn: txn.update(version=9) if "leader" in txn["appId"] else None)
    _, report = verify_root(LocalStore(str(root)))
    assert "leader epochs come from the metadata" in {breach.promise for breach in report.breaches}


def test_metadata_that_cannot_be_replayed_is_a_breach(root: Path) -> None:
    folder = root / "topics" / CLUSTER_METADATA_TOPIC / "0"
    data_file(folder, 1).unlink()
    (report,) = verify_root(LocalStore(str(root)))
    assert "metadata can be replayed" in {breach.promise for breach in report.breaches}


def test_folder_of_no_topic_is_a_note(root: Path) -> None:
    (root / "topics" / "stranger" / "0").mkdir(parents=True)
    report = next(verify_root(LocalStore(str(root))))
    assert report.notes == ["the folder topics/stranger belongs to no topic"]
