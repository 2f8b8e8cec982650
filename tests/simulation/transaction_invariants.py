"""Promises of transactions, judged by the tables at the end of a run and by the answers to the programs."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from bus.storage_delta.verify.replay import replay_table
from tests.simulation.broker_invariants import Invariant
from tests.simulation.coordinator_journal import CoordinatorJournal, History, Identity
from tests.simulation.memos import read_rows
from tests.simulation.metadata_journal import version_of
from tests.simulation.transaction_log_invariants import (
    DecisionsAreFinal,
    EpochsAreGivenOnce,
    ErrorsAreOfTheTable,
    JournalInvariant,
    MemoryIsTheLog,
    MessagesNameTheirTransaction,
    OffsetsFollowDecisions,
)

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
        if version.number == 0:
            self._versions[version.folder] = {}
        for action in version.actions:
            if "add" in action and action["add"]["dataChange"]:
                stats = json.loads(action["add"]["stats"])
                offsets = range(stats["minValues"]["offset"], stats["maxValues"]["offset"] + 1)
                self._versions[version.folder].update(dict.fromkeys(offsets, version.number))

    def check_end(self) -> None:
        from tests.simulation.transaction_programs import transactors_of

        attempts = [attempt for program in transactors_of(self.world) for attempt in program.attempts]
        places = {place for attempt in attempts for place in attempt.sent if self._is_there(place)}
        found = {place: self.read(place) for place in places}
        for attempt in attempts:
            if not attempt.is_stopped:
                self._check(attempt, found)

    def possible_offsets(self, transactional_id: str) -> set[int]:
        """Return the offsets that the group of that id may have committed: the offset of the last transaction that was
        committed with one, or of a later one whose end nothing proves."""
        from tests.simulation.transaction_programs import Outcome, transactors_of

        attempts = [
            attempt
            for program in transactors_of(self.world)
            for attempt in program.attempts
            if attempt.transactional_id == transactional_id and attempt.offset is not None
        ]
        possible: set[int] = set()
        for attempt in sorted(attempts, key=lambda one: (one.producer_id, one.producer_epoch), reverse=True):
            if attempt.outcome is Outcome.ABORTED or not attempt.is_commit_asked:
                continue
            assert attempt.offset is not None
            who = attempt.producer_id, attempt.producer_epoch
            has_rows = any(self.read(place).get(who) for place in attempt.sent if self._is_there(place))
            is_committed = attempt.outcome is Outcome.COMMITTED or has_rows
            if not is_committed and any(
                count for place, count in attempt.acknowledged.items() if self._is_there(place)
            ):
                continue  # its rows would be there
            possible.add(attempt.offset)
            if is_committed and attempt.is_offset_acknowledged:
                return possible
        return possible | {-1}

    def _is_there(self, place: Place) -> bool:
        """True if the topic exists; of a deleted one nothing remains to be judged."""
        return is_there(self.world, place.topic_id)

    def read(self, place: Place) -> Rows:
        return self.world.disk.find(("rows of transactions", place), lambda: self._read(place))

    def _read(self, place: Place) -> Rows:
        folder, store = f"topics/{place.topic}/{place.partition}", self.world.disk.files
        rows: Rows = defaultdict(list)
        versions = self._versions[folder]
        columns = ("producer_id", "producer_epoch", "offset", "sequence", "value")
        for file in replay_table(store, folder).files_by_offset:
            for *who, offset, sequence, value in read_rows(store.get(f"{folder}/{file.path}"), *columns):
                if value is not None and value.startswith(b"tx:"):
                    rows[who[0], who[1]].append(WrittenRow(offset, sequence, value, versions[offset]))
        return rows

    def _check(self, attempt: Attempt, found: dict[Place, Rows]) -> None:
        from tests.simulation.transaction_programs import Outcome

        who = attempt.producer_id, attempt.producer_epoch
        there = {place: found[place].get(who, []) for place in attempt.sent if self._is_there(place)}
        has_rows = any(there.values())
        if attempt.outcome is Outcome.ABORTED or not attempt.is_commit_asked:
            assert not has_rows, f"{attempt} was aborted, found {there}"
            return
        if attempt.outcome is not Outcome.COMMITTED and not has_rows:
            return
        for place in there:
            rows, sent, acknowledged = there[place], attempt.sent[place], attempt.acknowledged.get(place, 0)
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


_PROOF = "bus/txn/"


def is_there(world: BrokerWorld, topic_id: str) -> bool:
    """A program that asks for a deletion may hear late that it was made, and of which topic of the name."""
    return topic_id in world.live_topics and topic_id in world.journal.state.topic_names


class RowsFollowDecisions(JournalInvariant):
    """No version of a table ever has a row of a transaction whose commit is not decided, or more than the decision has
    pinned. All rows of a transaction come in one version, behind each other, with the proof that names its number;
    proofs of an id only rise. When all is over, each committed transaction has its rows, and no other has any."""

    def __init__(self, world: BrokerWorld, journal: CoordinatorJournal) -> None:
        super().__init__(world, journal)
        self._proofs: dict[str, dict[int, dict[str, int]]] = defaultdict(dict)  # folder -> version -> id -> proof
        self._rows: dict[str, dict[int, dict[Identity, int]]] = defaultdict(dict)  # the same: how many rows came
        # Transactions that no record had decided when their version came: where, and how many rows.
        self.alone: dict[tuple[str, int], tuple[str, int]] = {}

    def on_version(self, version: Version) -> None:
        for _, record in self.changes():
            alone = self.alone.get((record.transactional_id, record.number))
            if alone is not None and record.state.value == "PrepareCommit":
                pinned = {f"topics/{each.topic}/{each.partition}": last for each, last in record.partitions.items()}
                assert pinned == {alone[0]: alone[1] - 1}, f"{record}: {alone[0]} has {alone[1]} rows of it"
        folder = version.folder
        if version.number == 0:
            self._proofs[folder], self._rows[folder] = {}, {}
        proofs = {
            unquote(action["txn"]["appId"][len(_PROOF) :]): action["txn"]["version"]
            for action in version.actions
            if "txn" in action and action["txn"]["appId"].startswith(_PROOF)
        }
        for name, proof in proofs.items():
            before = self.proof_of(folder, name)
            assert proof > before or proof == -1, f"{folder}: version {version.number} has proof {proof}, not {before}"
        self._proofs[folder][version.number] = proofs
        self._rows[folder][version.number] = rows = defaultdict(int)
        for action in version.actions:
            if "add" in action and action["add"]["dataChange"] and not folder.split("/")[1].startswith("__"):
                for identity, sequences in self._read(folder, unquote(action["add"]["path"])):
                    self._check_rows(version, identity, sequences, proofs)
                    rows[identity] += len(sequences)

    def _read(self, folder: str, path: str) -> list[tuple[Identity, list[int]]]:
        """Runs of rows of one identity, in the order of the file."""
        data = self.world.disk.files.get(f"{folder}/{path}")
        runs: list[tuple[Identity, list[int]]] = []
        for producer_id, epoch, sequence in read_rows(data, "producer_id", "producer_epoch", "sequence"):
            if not runs or runs[-1][0] != (producer_id, epoch):
                runs.append(((producer_id, epoch), []))
            runs[-1][1].append(sequence)
        return runs

    def _check_rows(self, version: Version, identity: Identity, sequences: list[int], proofs: dict[str, int]) -> None:
        if not any(identity[0] == record.producer_id for each in self.journal.ids.values() for record in each.records):
            return
        where = f"{version.folder}: version {version.number} has rows of {identity}"
        found = self.journal.find(identity)
        assert found is not None, f"{where}, which was never open"
        name, history, number = found
        assert proofs.get(name) == 2 * number + 1, f"{where}, transaction {number} of {name}, with proofs {proofs}"
        decided = [each for each in history.records if each.number == number and each.state.value == "PrepareCommit"]
        if not decided:
            assert sequences == list(range(len(sequences))), f"{where} with the sequences {sequences}"
            self._check_alone(where, version.folder, history, number, identity)
            self.alone[name, number] = version.folder, len(sequences)
            return
        pinned = {f"topics/{each.topic}/{each.partition}": last for each, last in decided[0].partitions.items()}
        last = pinned.get(version.folder, -1)
        assert sequences == list(range(last + 1)), f"{where} with the sequences {sequences}, pinned is {last}"

    @staticmethod
    def _check_alone(where: str, folder: str, history: History, number: int, identity: Identity) -> None:
        """A version may decide where the log ends with a commit of this partition and nothing else, and epochs and
        numbers have risen in step since: so who loads the log asks this partition, and finds out how far the id is."""
        last = history.records[-1]
        states = history.states_of(number)
        assert last.state.value in ("PrepareCommit", "CompleteCommit"), (
            f"{where}, which is {states}; the log has {last}"
        )
        places = [f"topics/{each.topic}/{each.partition}" for each in last.partitions]
        assert (places, last.groups) == ([folder], ()), f"{where}, which no record has decided; the log has {last}"
        expected = last.producer_id, last.producer_epoch + number - last.number - 1
        assert number > last.number, f"{where}, transaction {number}; the log has {last}"
        assert identity == expected, f"{where}, transaction {number}, expected {expected}; the log has {last}"

    def on_lost(self, key: str) -> None:
        name = version_of(key)
        if name is not None:
            for known in (self._proofs, self._rows):
                known[name[0]].pop(name[1], None)

    def proof_of(self, folder: str, transactional_id: str) -> int:
        return max(
            (told[transactional_id] for told in self._proofs[folder].values() if transactional_id in told), default=-1
        )

    def count_in_one_version(self, folder: str) -> int:
        """How many transactions a version has had at most."""
        return max(sum(proof % 2 for proof in proofs.values()) for proofs in self._proofs[folder].values())

    def check_end(self) -> None:
        for name, history in self.journal.ids.items():
            for record in history.records:
                if record.state.value == "CompleteCommit":
                    self._check_complete(name, record)

    def _check_complete(self, name: str, record: Any) -> None:
        there = {each: last for each, last in record.partitions.items() if is_there(self.world, each.topic_id)}
        identity = self.journal.identity_of(name, record.number) if there else None
        for partition, last in there.items():
            folder = f"topics/{partition.topic}/{partition.partition}"
            assert identity is not None
            found = {number: rows[identity] for number, rows in self._rows[folder].items() if identity in rows}
            if (name, record.number) in self.alone:  # a record that was made of its proof does not say how many
                last = self.alone[name, record.number][1] - 1
            assert [*found.values()] == [last + 1] * (last >= 0), (
                f"{record} of {name}: {partition} has rows of it in versions {found}, expected {last + 1}"
            )
            told = record.results.get(partition)
            assert told is None or told.version >= max(found, default=-1), f"{record}: {partition} has {found}"


class StagedIsKept(JournalInvariant):
    """Nothing that is staged, or pending in a group, is deleted while its transaction may still be committed with it: a
    staged file goes when the transaction is aborted, or when the partition has its rows, or does not take part."""

    def __init__(self, world: BrokerWorld, journal: CoordinatorJournal, rows: RowsFollowDecisions) -> None:
        super().__init__(world, journal)
        self._rows = rows

    def on_deleted(self, key: str) -> None:
        folder, staged, rest = key.partition("/_staged/")
        if not staged or self.world.acting is None:
            return
        if self.world.leaders.topic_ids.get(folder) not in self.world.journal.state.topic_names:
            return  # the topic is deleted
        producer_id, epoch, *_ = rest.split("/")[1].split("-")
        found = self.journal.find((int(producer_id), int(epoch)))
        if found is None:
            return
        name, history, number = found
        records = [each for each in history.records if each.number == number]
        if not records:  # its version came before any record
            return
        record = records[-1]
        if record.state.value not in ("Ongoing", "PrepareCommit"):
            return
        last = {f"topics/{each.topic}/{each.partition}": pinned for each, pinned in record.partitions.items()}
        if folder not in last:
            return
        if record.state.value == "PrepareCommit" and last[folder] < 0:
            return
        proof = self._rows.proof_of(folder, name)
        assert proof >= 2 * number, f"{key} is deleted; {name} is {record.state.value}, the table has proof {proof}"


def judge_transactions(world: BrokerWorld) -> None:
    """Add the judges of any world: the journal before the invariants that ask it."""
    journal = CoordinatorJournal(world)
    rows = RowsFollowDecisions(world, journal)
    world.invariants += [
        TransactionsAreWhole(world),
        journal,
        DecisionsAreFinal(world, journal),
        MessagesNameTheirTransaction(world, journal),
        EpochsAreGivenOnce(world, journal),
        MemoryIsTheLog(world, journal),
        OffsetsFollowDecisions(world, journal),
        rows,
        StagedIsKept(world, journal, rows),
        ErrorsAreOfTheTable(world),
    ]
