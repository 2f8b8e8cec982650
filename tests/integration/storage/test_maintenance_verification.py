"""Each promise of maintenance broken once, by hand, in a table that the bus wrote: the verification has to name it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bus.model import TopicPartition
from bus.ports import Committed
from bus.storage_delta.log.listing import checkpoint_name, version_name
from bus.storage_delta.root import open_storage_on
from bus.storage_delta.table import DeltaPartitionTable
from bus.storage_delta.verify.verification import verify_partition
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS, led, log_batch

NAME = TopicPartition("orders", 0)
LOG = "topics/orders/0/_delta_log"
ROLL, REMOVAL, APPEND = 7, 9, 10
Actions = list[dict[str, Any]]


class Bench:
    """Versions 1 to 6 append two records each, 7 rolls the first three files, 8 appends, 9 lets go of all below 9, 10
    appends; a checkpoint of 8, and one of 10. The last files begin at 8, 10 and 12; the log starts at 9."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.table: DeltaPartitionTable = led(
            open_storage_on(self.store, exclusive=False).create_partition(NAME, topic_id="id")
        )
        for _ in range(6):
            self.append()
        prepared = self.table.rewrites.prepare_roll(
            self.table.rewrites.files[:3], compression="none", now_ms=NOW_MS, tombstone_retention_ms=1
        )
        assert self.table.rewrites.swap(prepared, leader_epoch=0, now_ms=NOW_MS) == Committed(ROLL, 12)
        self.append()
        self.table.cleanup.write_checkpoint()
        assert self.table.cleanup.advance_log_start(9, leader_epoch=0, now_ms=NOW_MS) == Committed(REMOVAL, 14)
        self.append()
        self.table.cleanup.write_checkpoint()

    def append(self) -> None:
        base = self.table.state.high_watermark
        self.table.append([log_batch(base, [b"v"] * 2)], leader_epoch=0, now_ms=NOW_MS)

    def actions(self, version: int) -> Actions:
        return [json.loads(line) for line in self.store.get(f"{LOG}/{version_name(version)}").splitlines()]

    def edit(self, version: int, change: Callable[[Actions], object]) -> None:
        actions = self.actions(version)
        change(actions)
        actions[0]["commitInfo"]["actionCount"] = len(actions)
        self.store.put(f"{LOG}/{version_name(version)}", "".join(json.dumps(one) + "\n" for one in actions).encode())

    def drop_checkpoints(self) -> None:
        for version in (8, 10):
            self.store.delete(f"{LOG}/{checkpoint_name(version)}")
        self.store.delete(f"{LOG}/_last_checkpoint")

    def promises(self) -> set[str]:
        return {breach.promise for breach in verify_partition(self.store, NAME, topic_id="id").breaches}

    def found(self, promise: str) -> list[tuple[str, int | None, str]]:
        report = verify_partition(self.store, NAME, topic_id="id")
        return [(one.file, one.version, one.expected) for one in report.breaches if one.promise == promise]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def bodies(actions: Actions, kind: str) -> Actions:
    return [action[kind] for action in actions if kind in action]


def set_log_start(offset: int) -> Callable[[Actions], object]:
    def change(actions: Actions) -> None:
        (txn,) = [body for body in bodies(actions, "txn") if body["appId"] == "bus/log_start"]
        txn["version"] = offset

    return change


def test_maintenance_as_the_bus_does_it_breaks_no_promise(bench: Bench) -> None:
    assert (bench.table.state.log_start, [file.base_offset for file in bench.table.rewrites.files]) == (
        9,
        [8, 10, 12, 14],
    )
    assert bench.promises() == set()
    bench.drop_checkpoints()
    assert bench.promises() == set()
    bench.table.cleanup.drop_old_versions(committed_before_ms=0, count_max=1, removed_before_ms=2**62)
    assert bench.promises() == set()


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (7, "with offsets up to 7 to stay"),
        (10, "with offsets up to 9 to go"),
        (15, "bus/log_start from 0 to 14"),
    ],
)
def test_a_log_start_that_does_not_fit_what_was_removed_is_found(bench: Bench, offset: int, expected: str) -> None:
    bench.drop_checkpoints()
    bench.edit(REMOVAL, set_log_start(offset))
    assert any(expected in text for _, version, text in bench.found("the log start is true") if version == REMOVAL)


def test_a_log_start_that_goes_back_is_found(bench: Bench) -> None:
    bench.drop_checkpoints()
    bench.edit(APPEND, lambda actions: actions.append({"txn": {"appId": "bus/log_start", "version": 8}}))
    assert (f"_delta_log/{version_name(APPEND)}", APPEND, "bus/log_start from 9 to 16") in bench.found(
        "the log start is true"
    )


def test_a_log_start_that_the_first_file_does_not_reach_is_found(bench: Bench) -> None:
    bench.drop_checkpoints()

    def forget_log_start(actions: Actions) -> None:
        actions[:] = [one for one in actions if one.get("txn", {}).get("appId") != "bus/log_start"]

    bench.edit(REMOVAL, forget_log_start)
    (breach,) = bench.found("offsets are dense")
    assert breach == (bench.table.rewrites.files[0].path, 10, "offset 0, the log start")


def test_a_removal_of_records_beside_anything_else_is_found(bench: Bench) -> None:
    bench.drop_checkpoints()
    bench.edit(ROLL, lambda actions: bodies(actions, "remove")[0].update(dataChange=True))
    (breach,) = bench.found("changes of data and rewritings are apart")
    assert breach[1:] == (ROLL, "nothing beside the removal of records")


def test_new_records_beside_a_removal_are_found(bench: Bench) -> None:
    bench.drop_checkpoints()
    bench.edit(ROLL, lambda actions: bodies(actions, "add")[0].update(dataChange=True))
    assert bench.found("changes of data and rewritings are apart")[0][2] == "no removal beside new records"


def test_a_removed_file_that_a_kept_version_has_and_that_is_gone_is_found(bench: Bench) -> None:
    path = bodies(bench.actions(ROLL), "remove")[0]["path"]
    bench.store.delete(f"topics/orders/0/{path}")
    assert bench.found("kept versions can be read") == [(path, ROLL, "a file that version 6 has")]


def test_a_checkpoint_that_leaves_out_a_removed_file_that_is_there_is_found(bench: Bench) -> None:
    key = f"{LOG}/{checkpoint_name(8)}"
    table = pq.read_table(pa.BufferReader(bench.store.get(key)))
    sink = pa.BufferOutputStream()
    pq.write_table(table.filter(table.column("remove").is_null()), sink)
    bench.store.put(key, sink.getvalue().to_pybytes())
    found = bench.found("checkpoints name the removed files that are there")
    removed = sorted(body["path"] for body in bodies(bench.actions(ROLL), "remove"))
    assert found == [(f"_delta_log/{checkpoint_name(8)}", 8, f"a remove of {path}") for path in removed]


def test_a_checkpoint_that_leaves_out_a_removed_file_that_is_gone_is_none(bench: Bench) -> None:
    bench.table.cleanup.drop_old_versions(committed_before_ms=0, count_max=3, removed_before_ms=2**62)
    bench.append()
    bench.table.cleanup.write_checkpoint()
    assert bench.promises() == set()
