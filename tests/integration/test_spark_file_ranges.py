"""Sources that a task of a Spark query reads: data files as they were planned, as they are by then, or what a broker
sends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bus import Admin, NewTopic, Producer
from bus.errors import BusError, ErrorCode, RootNotUsable, StorageDamaged
from bus.model import TopicPartition
from bus.ports import Committed
from bus.records.log_schema import LOG_SCHEMA
from bus.settings.broker import BrokerConfig
from bus.spark.source.access import FileRange, InputRange, ReadRules, StorageAccess
from bus.spark.source.inputs import RecordsGone, TopicGone, merge, read_range
from bus.spark.source.planning import OffsetRange
from bus.spark.source.source_options import Location
from bus.storage_delta.files.proved_parquet import BytesSource, encode_sums
from bus.storage_delta.files.trials import TRIALS
from tests.support.broker_thread import running_broker
from tests.support.log_root import COUNT, PARTITION, LogRoot
from tests.support.stores import NOW_MS

COLUMNS = ["offset", "value"]


@pytest.fixture
def log(tmp_path: Path) -> LogRoot:
    """Four files of ten records; the value of each is its offset."""
    log = LogRoot(tmp_path / "root")
    log.append(4)
    return log


def plan(log: LogRoot, begin: int, end: int) -> InputRange:
    (planned,) = StorageAccess(str(log.root)).plan([OffsetRange(PARTITION, begin, end)])
    return planned


def rules_of(log: LogRoot, *, fails_on_loss: bool = True) -> ReadRules:
    return ReadRules(Location(root=str(log.root)), fails_on_loss, patience_ms=1_000)


def read(wanted: InputRange, rules: ReadRules) -> list[int]:
    """The offsets, having checked their values."""
    tables = list(read_range(wanted, COLUMNS, rules))
    rows = [row for table in tables for row in table.to_pylist()]
    assert all(row["value"] == b"%d" % row["offset"] for row in rows)
    return [row["offset"] for row in rows]


def roll(log: LogRoot, *, but: str = "") -> None:
    """All files into one; those before it are deleted at once."""
    before = [file.path for file in log.table.rewrites.files]
    prepared = log.table.rewrites.prepare_roll(
        log.table.rewrites.files, compression="none", now_ms=NOW_MS, tombstone_retention_ms=1
    )
    assert isinstance(log.table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS), Committed)
    for path in before:
        if str(log.folder / path) != but:
            (log.folder / path).unlink()


@pytest.mark.parametrize(("begin", "end"), [(0, 40), (0, 1), (39, 40), (9, 11), (10, 20), (15, 35)])
def test_a_range_is_its_records_in_order(log: LogRoot, begin: int, end: int) -> None:
    planned = plan(log, begin, end)
    assert read(planned, rules_of(log)) == list(range(begin, end))
    assert planned.files is not None
    assert len(planned.files) == (end - 1) // COUNT - begin // COUNT + 1


def test_files_that_were_rewritten_since_are_looked_up_by_offsets(log: LogRoot) -> None:
    planned = plan(log, 5, 35)
    roll(log)
    assert read(planned, rules_of(log)) == list(range(5, 35))


def test_a_file_that_goes_in_the_middle_of_a_task_is_looked_up_from_there(log: LogRoot) -> None:
    planned = plan(log, 0, 40)
    assert planned.files is not None
    tables = read_range(planned, COLUMNS, rules_of(log))
    roll(log, but=planned.files[0].path)
    assert [offset for table in tables for offset in table.column("offset").to_pylist()] == list(range(40))


def test_records_that_went_with_their_files_stop_the_task_unless_it_may_go_on(
    log: LogRoot, caplog: pytest.LogCaptureFixture
) -> None:
    planned = plan(log, 5, 35)
    gone = [log.data_file(0), log.data_file(10)]
    assert isinstance(log.table.cleanup.advance_log_start(22, leader_epoch=0, now_ms=NOW_MS), Committed)
    for file in gone:
        file.unlink()
    with pytest.raises(RecordsGone, match="expected records from offset 5 on, they begin at 22; failOnDataLoss"):
        read(planned, rules_of(log))
    with caplog.at_level(logging.WARNING):
        assert read(planned, rules_of(log, fails_on_loss=False)) == list(range(22, 35))
    assert "data lost: orders-0: expected records from offset 5 on, they begin at 22" in caplog.text


def test_a_range_that_has_gone_as_a_whole_is_empty_where_it_may_be(log: LogRoot) -> None:
    planned = plan(log, 5, 8)
    gone = log.data_file(0)
    assert isinstance(log.table.cleanup.advance_log_start(22, leader_epoch=0, now_ms=NOW_MS), Committed)
    gone.unlink()
    assert read(planned, rules_of(log, fails_on_loss=False)) == []


def test_files_of_another_topic_of_that_name_are_never_read(log: LogRoot, caplog: pytest.LogCaptureFixture) -> None:
    planned = replace(plan(log, 0, 40), topic_id="of the topic before")
    roll(log)
    with pytest.raises(TopicGone, match="orders-0: expected topic id of the topic before, found"):
        read(planned, rules_of(log))
    with caplog.at_level(logging.WARNING):
        assert read(planned, rules_of(log, fails_on_loss=False)) == []
    assert "data lost: orders-0: expected topic id of the topic before, found" in caplog.text


def test_what_was_read_of_a_topic_before_it_went_is_kept_where_losses_are_allowed(log: LogRoot) -> None:
    planned = plan(log, 0, 40)
    assert planned.files is not None
    roll(log, but=planned.files[0].path)
    planned = replace(planned, topic_id="of the topic before")
    assert read(planned, rules_of(log, fails_on_loss=False)) == list(range(10))


def test_a_live_file_that_is_not_there_is_damage(log: LogRoot) -> None:
    planned = plan(log, 0, 40)
    log.data_file(20).unlink()
    with pytest.raises(StorageDamaged, match=r"expects .* bytes with offsets 20 to 29, found no such file"):
        read(planned, rules_of(log))


def test_a_file_with_fewer_records_than_its_offsets_is_damage(log: LogRoot) -> None:
    planned = plan(log, 0, 40)
    file = log.data_file(20)
    table = pq.read_table(file, partitioning=None)
    pq.write_table(pa.concat_tables([table.slice(0, 4), table.slice(5)]), file)
    with pytest.raises(StorageDamaged, match="offsets 20 to 29: expected the checksum"):
        read(planned, rules_of(log))


def test_a_file_that_cannot_be_read_is_damage_and_names_it(log: LogRoot) -> None:
    planned = plan(log, 0, 40)
    file = log.data_file(20)
    file.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(StorageDamaged, match=rf"{file.name}: expected a readable data file"):
        read(planned, rules_of(log))


def test_offsets_between_files_are_never_skipped(log: LogRoot) -> None:
    planned = plan(log, 0, 40)
    assert planned.files is not None
    with pytest.raises(StorageDamaged, match="orders-0: expected offset 10, found 20 next"):
        read(replace(planned, files=(planned.files[0], *planned.files[2:])), rules_of(log))
    with pytest.raises(StorageDamaged, match="orders-0: expected offsets to 40, found 30"):
        read(replace(planned, files=planned.files[:3]), rules_of(log))


def test_rows_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    file = tmp_path / "f.parquet"
    offsets = [5, 1, 4, 0, 3, 2]
    pq.write_table(
        pa.table({"offset": pa.array(offsets), "value": [b"%d" % n for n in offsets]}), file, row_group_size=2
    )
    wanted = OffsetRange(PARTITION, 1, 5)
    found = read(InputRange(wanted, (FileRange(str(file), 1, 5, False, True),), None), rules_of_none(tmp_path))
    assert found == [1, 2, 3, 4]


def test_row_groups_outside_of_the_range_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "f.parquet"
    table = pa.table({"offset": pa.array(range(100)), "value": [b"%d" % n for n in range(100)]})
    pq.write_table(table, file, row_group_size=10, compression="none", use_dictionary=False)
    content = bytearray(file.read_bytes())
    metadata = pq.read_metadata(file)
    for index in [*range(4), *range(6, 10)]:  # all groups but those of offsets 40 to 59 are overwritten
        for column in range(2):
            chunk = metadata.row_group(index).column(column)
            content[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size] = b"\xff" * (
                chunk.total_compressed_size
            )
    sums = encode_sums(TRIALS.sums_of(BytesSource(file.read_bytes())))
    file.write_bytes(content)
    wanted = OffsetRange(PARTITION, 45, 55)
    planned = InputRange(wanted, (FileRange(str(file), 45, 55, True, True, sums),), None)
    assert read(planned, rules_of_none(tmp_path)) == list(range(45, 55))


def rules_of_none(folder: Path) -> ReadRules:
    return ReadRules(Location(root=str(folder)), True, patience_ms=1_000)


def test_small_neighbours_become_one_table() -> None:
    tables = [pa.table({"offset": [n, n + 1]}) for n in range(0, 14, 2)]
    merged = list(merge(iter(tables), rows_max=6))
    assert [table.num_rows for table in merged] == [6, 6, 2]
    assert [offset for table in merged for offset in table.column("offset").to_pylist()] == list(range(14))
    assert all(table.column("offset").num_chunks == 1 for table in merged)


# ---------------------------------------------------------------- fetched

FETCHED = TopicPartition("fetched", 0)


def test_a_task_without_the_storage_fetches_and_goes_on_where_files_were(tmp_path: Path) -> None:
    with running_broker(tmp_path / "root", config=BrokerConfig()) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topics([NewTopic("fetched", 1)])
            for n in range(50):
                producer.send("fetched", b"%d" % n)
            producer.flush()
            wanted = OffsetRange(FETCHED, 5, 45)
            rules = ReadRules(Location(address, None), True, patience_ms=5_000)
            assert read(InputRange(wanted, None, None), rules) == list(range(5, 45))
            # Planned where the storage was, read where it is not.
            elsewhere = FileRange(str(tmp_path / "elsewhere" / "f.parquet"), 5, 45, True, True)
            topic_id = admin.describe_topics(["fetched"])["fetched"].topic_id
            planned = InputRange(wanted, (elsewhere,), topic_id)
            both = replace(rules, location=Location(address, str(tmp_path / "elsewhere")))
            assert read(planned, both) == list(range(5, 45))
            with pytest.raises(RootNotUsable):
                read(planned, replace(rules, location=Location(None, str(tmp_path / "elsewhere"))))

            admin.delete_records({FETCHED: 20})
            with pytest.raises(RecordsGone, match="fetched-0: expected records from offset 5 on, they begin at 20"):
                read(InputRange(wanted, None, None), rules)
            assert read(InputRange(wanted, None, None), replace(rules, fails_on_loss=False)) == list(range(20, 45))

            beyond = InputRange(OffsetRange(FETCHED, 40, 60), None, None)
            with pytest.raises(BusError, match="expected records from offset 50 on within 200 ms") as caught:
                read(beyond, replace(rules, patience_ms=200))
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT


def test_a_fetching_task_never_takes_another_topic_of_that_name_for_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_broker(tmp_path / "root", config=BrokerConfig()) as broker:
        address = f"127.0.0.1:{broker.port}"
        rules = ReadRules(Location(address, None), True, patience_ms=5_000)
        anyway = replace(rules, fails_on_loss=False)
        with Admin(address) as admin:
            planned = {}
            for generation in range(2):
                admin.create_topics([NewTopic("fetched", 1)])
                with Producer(address) as producer:
                    for n in range(20):
                        producer.send("fetched", b"%d" % n)
                topic_id = admin.describe_topics(["fetched"])["fetched"].topic_id
                planned[generation] = InputRange(OffsetRange(FETCHED, 5, 15), None, topic_id)
                assert read(planned[generation], rules) == list(range(5, 15))
                if generation == 0:
                    admin.delete_topics(["fetched"])
                    with pytest.raises(TopicGone, match=r"fetched-0: expected topic id .*, found None"):
                        read(planned[generation], rules)
                    assert read(planned[generation], anyway) == []
            with pytest.raises(TopicGone, match=rf"expected topic id .*, found {planned[1].topic_id}"):
                read(planned[0], rules)
            with caplog.at_level(logging.WARNING):
                assert read(planned[0], anyway) == []
            assert "data lost: fetched-0: expected topic id" in caplog.text
            assert read(planned[1], rules) == list(range(5, 15))


def rewrite_as_spark_does(path: Path) -> None:
    """Times as INT96, which say no time zone; other names within lists; one type for all integers."""
    rows = pq.read_table(path)
    headers = pa.list_(pa.field("array", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
    fields = [field.with_type(headers) if field.name == "headers" else field for field in rows.schema]
    pq.write_table(rows.cast(pa.schema(fields)), path, use_deprecated_int96_timestamps=True, store_schema=False)


def rewrite_as_delta_rs_does(path: Path) -> None:
    """Write it again with views in the footer's note of Arrow's types."""
    rows = pq.read_table(path)
    views = {"key": pa.binary_view(), "value": pa.binary_view()}
    schema = pa.schema([field.with_type(views.get(field.name, field.type)) for field in rows.schema])
    pq.write_table(rows.cast(schema), path)


@pytest.mark.parametrize("rewrite", [rewrite_as_spark_does, rewrite_as_delta_rs_does])
def test_files_of_other_engines_are_joined_with_those_of_the_bus(log: LogRoot, rewrite: Callable[[Path], None]) -> None:
    planned = plan(log, 0, 40)
    assert planned.files is not None
    rewrite(Path(planned.files[1].path))
    files = tuple(replace(file, sums="") for file in planned.files)
    columns = ["offset", "timestamp", "timestamp_type", "key", "value", "headers"]
    tables = list(read_range(replace(planned, files=files), columns, rules_of(log)))
    joined = pa.concat_tables(tables)
    assert joined.schema.types == [LOG_SCHEMA.field(name).type for name in columns]
    assert joined.column("offset").to_pylist() == list(range(40))
    assert joined.column("value").to_pylist() == [b"%d" % offset for offset in range(40)]
