"""What transactions promise, judged by the tables at the end of a run and by what the programs were told."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from bus.storage_delta.verify.replay import replay_table
from tests.simulation.broker_invariants import Invariant

if TYPE_CHECKING:
    from tests.simulation.broker_programs import Place
    from tests.simulation.broker_world import BrokerWorld
    from tests.simulation.metadata_journal import Version
    from tests.simulation.transaction_programs import Attempt


@dataclass(frozen=True, slots=True)
class WrittenRow:
    offset: int
    sequence: int
    value: bytes
    version: int  # that added it


Rows = dict[tuple[int, int], list[WrittenRow]]  # by producer id and epoch, in the order of offsets


class TransactionsAreWhole(Invariant):
    """A transaction that was answered as committed has in every partition all rows that were acknowledged, each once,
    densely and in one version, which is not later than the one of the answer. One that was answered as aborted, or was
    never asked to be committed, has none in any partition. Any other has all of its rows everywhere, or none."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self._versions: dict[str, dict[int, int]] = defaultdict(dict)  # folder -> offset -> version that added it

    def on_version(self, version: Version) -> None:
        for action in version.actions:
            if "add" in action and action["add"]["dataChange"]:
                stats = json.loads(action["add"]["stats"])
                offsets = range(stats["minValues"]["offset"], stats["maxValues"]["offset"] + 1)
                self._versions[version.folder].update(dict.fromkeys(offsets, version.number))

    def check_end(self) -> None:
        from tests.simulation.transaction_programs import Transactor

        attempts = [
            attempt
            for program in self.world.programs
            if isinstance(program, Transactor)
            for attempt in program.attempts
        ]
        places = {place for attempt in attempts for place in attempt.sent}
        found = {place: self._read(place) for place in places}
        for attempt in attempts:
            self._check(attempt, found)

    def possible_offsets(self, transactional_id: str) -> set[int]:
        """What the group of that id may have committed: the offset of the last transaction that was committed with one,
        or of a later one of which nothing tells how it ended."""
        from tests.simulation.transaction_programs import Outcome, Transactor

        attempts = [
            attempt
            for program in self.world.programs
            if isinstance(program, Transactor)
            for attempt in program.attempts
            if attempt.transactional_id == transactional_id and attempt.offset is not None
        ]
        possible: set[int] = set()
        for attempt in sorted(attempts, key=lambda one: (one.producer_id, one.producer_epoch), reverse=True):
            if attempt.outcome is Outcome.ABORTED or not attempt.is_commit_asked:
                continue
            assert attempt.offset is not None
            who = attempt.producer_id, attempt.producer_epoch
            has_rows = any(self._read(place).get(who) for place in attempt.sent)
            is_committed = attempt.outcome is Outcome.COMMITTED or has_rows
            if not is_committed and any(attempt.acknowledged.values()):
                continue  # its rows would be there
            possible.add(attempt.offset)
            if is_committed and attempt.is_offset_acknowledged:
                return possible
        return possible | {-1}

    def _read(self, place: Place) -> Rows:
        folder, store = f"topics/{place.topic}/{place.partition}", self.world.disk.files
        rows: Rows = defaultdict(list)
        versions = self._versions[folder]
        columns = ["offset", "producer_id", "producer_epoch", "sequence", "value"]
        for file in replay_table(store, folder).files_by_offset:
            read = pq.ParquetFile(io.BytesIO(store.get(f"{folder}/{file.path}"))).read(columns)
            for row in read.to_pylist():
                if row["value"] is not None and row["value"].startswith(b"tx:"):
                    who = row["producer_id"], row["producer_epoch"]
                    rows[who].append(WrittenRow(row["offset"], row["sequence"], row["value"], versions[row["offset"]]))
        return rows

    def _check(self, attempt: Attempt, found: dict[Place, Rows]) -> None:
        from tests.simulation.transaction_programs import Outcome

        who = attempt.producer_id, attempt.producer_epoch
        there = {place: found[place].get(who, []) for place in attempt.sent}
        has_rows = any(there.values())
        if attempt.outcome is Outcome.ABORTED or not attempt.is_commit_asked:
            assert not has_rows, f"{attempt} was aborted, found {there}"
            return
        if attempt.outcome is not Outcome.COMMITTED and not has_rows:
            return
        for place, sent in attempt.sent.items():
            rows, acknowledged = there[place], attempt.acknowledged.get(place, 0)
            self._check_rows(attempt, place, rows)
            values = [row.value for row in rows]
            assert values == sent[: len(values)], f"{attempt}: {place} has {values}"
            # Without ends, all that is staged is committed, acknowledged or not.
            names_ends = attempt.names_ends and any(attempt.acknowledged.values())
            expected = acknowledged if names_ends else max(acknowledged, len(values))
            assert len(values) == expected, f"{attempt}: {place} has {values}, expected {expected} of them"

    def _check_rows(self, attempt: Attempt, place: Place, rows: list[WrittenRow]) -> None:
        assert [row.sequence for row in rows] == list(range(len(rows))), f"{attempt}: {place} has {rows}"
        if not rows:
            return
        assert rows[-1].offset - rows[0].offset == len(rows) - 1, f"{attempt}: {place} has other rows among {rows}"
        assert len({row.version for row in rows}) == 1, f"{attempt}: {place} has {rows} in several versions"
        named = attempt.versions.get((place.topic, place.partition))
        if named is not None:
            version, base_offset = named
            assert rows[0].version <= version, f"{attempt}: {place} has them in version {rows[0].version}"
            assert base_offset in (-1, rows[0].offset), f"{attempt}: {place} has them from {rows[0].offset} on"
