"""Changes of a log by other engines, and what undoes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.errors import StorageDamaged
from bus.storage_delta.files.live_file import LiveFile
from bus.storage_delta.log.actions import Add, Commit, Protocol, Remove, TableMetadata
from bus.storage_delta.log.table_state import TableState, adopt, apply

OURS = "delta-bus/1"
COLUMNS = '{"type":"struct","fields":[{"name":"offset","type":"long","nullable":true,"metadata":{}}]}'
METADATA = TableMetadata(COLUMNS, {"bus.topic_id": "id"})


def live(base: int, following: int) -> LiveFile:
    return LiveFile(f"f{base}", 10, base, following, following - base, 0, 0, 0)


def added(file: LiveFile) -> Add:
    return Add(file.path, file.size_bytes, True, file)


def rewritten(base: int, following: int) -> Add:
    return replace(added(replace(live(base, following), path="rewritten")), path="rewritten", is_data_change=False)


def created() -> TableState:
    version_0 = Commit(0, "CREATE TABLE", OURS, metadata=METADATA, protocol=Protocol(1, 2))
    appends = [Commit(1, "WRITE", OURS, adds=[added(live(0, 5))]), Commit(2, "WRITE", OURS, adds=[added(live(5, 9))])]
    return apply(TableState(), [version_0, *appends])


def foreign(version: int, **actions: object) -> Commit:
    return Commit(version, "DELETE", "Spark/4", **actions)  # type: ignore[arg-type]


def test_records_that_another_engine_removed_are_a_harm_until_they_are_back() -> None:
    harmed = apply(created(), [foreign(3, removes=[Remove("f0", True, 1)])])
    assert [str(harm.deed) for harm in harmed.harms.values()] == ["removed records of f0, which only the broker may"]
    assert harmed.files.keys() == {"f5"}
    restored = apply(harmed, [foreign(4, adds=[Add("f0", 10, True, None)])])
    assert not restored.harms
    assert restored.files == created().files
    assert restored.high_watermark == 9


def test_a_version_of_ours_removes_what_is_there_unless_it_is_a_repair() -> None:
    gone = [Remove("f5", False, 1), Remove("f9", False, 1)]
    (harm,) = apply(created(), [Commit(3, "OPTIMIZE", OURS, removes=gone)]).harms.values()
    assert harm.deed == "removed f9, which was not there: another version had this number"
    assert not apply(created(), [Commit(3, "REPAIR", OURS, removes=gone)]).harms


def test_records_that_another_engine_appended_elsewhere_are_a_harm_until_they_go() -> None:
    harmed = apply(created(), [foreign(3, adds=[added(live(100, 103))])])
    assert [harm.version for harm in harmed.harms.values()] == [3]
    assert harmed.high_watermark == 9
    healed = apply(harmed, [foreign(4, removes=[Remove("f100", True, 1)])])
    assert not healed.harms
    assert healed.files == created().files


def test_a_rewriting_that_loses_a_record_is_a_harm() -> None:
    gone = [Remove("f0", False, 1), Remove("f5", False, 1)]
    kept = apply(created(), [foreign(3, removes=gone, adds=[rewritten(0, 9)])])
    assert not kept.harms
    lossy = apply(created(), [foreign(3, removes=gone, adds=[rewritten(0, 8)])])
    assert [harm.deed for harm in lossy.harms.values()] == ["replaced files with 9 records by files with 8"]


def test_another_topic_id_and_other_columns_are_harms_until_they_are_changed_back() -> None:
    for other in (TableMetadata(COLUMNS, {}), TableMetadata(COLUMNS.replace("long", "string"), METADATA.configuration)):
        harmed = apply(created(), [foreign(3, metadata=other)])
        assert len(harmed.harms) == 1
        assert not apply(harmed, [foreign(4, metadata=METADATA)]).harms


def test_a_newer_protocol_is_a_harm() -> None:
    (harm,) = apply(created(), [foreign(3, protocol=Protocol(3, 7))]).harms.values()
    assert "(3, 7)" in harm.deed


@pytest.mark.parametrize("writer_features", [None, frozenset({"busManaged", "changeDataFeed"})])
def test_writer_features_that_the_bus_does_not_know_are_a_harm(writer_features: frozenset[str] | None) -> None:
    (harm,) = apply(created(), [foreign(3, protocol=Protocol(1, 7, writer_features))]).harms.values()
    assert "(1, 7)" in harm.deed
    assert ("changeDataFeed" in harm.deed) == (writer_features is not None)


@pytest.mark.parametrize("writer_features", [frozenset(), frozenset({"appendOnly", "invariants", "busManaged"})])
def test_known_writer_features_are_no_harm(writer_features: frozenset[str]) -> None:
    assert not apply(created(), [foreign(3, protocol=Protocol(1, 7, writer_features))]).harms


def test_a_file_without_offsets_is_a_harm_and_one_with_them_is_not() -> None:
    def describe(add: Add) -> LiveFile:
        if add.path == "odd":
            raise StorageDamaged("no offsets")
        return live(9, 12)

    adds = adopt([Add("odd", 1, True, None), Add("f9", 10, True, None)], describe)
    state = apply(created(), [foreign(3, adds=adds)])
    assert {path: harm.deed for path, harm in state.harms.items()} == {
        "odd": "added odd, which is no file of the log: no offsets"
    }
    assert state.high_watermark == 12
    assert not state.files["f9"].is_ours
