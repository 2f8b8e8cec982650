"""The logs of the coordinators, `__transaction_state` and `__consumer_offsets`, one version after another.

It is read from what comes to be on the disk: the judge's own view, which depends on no broker's memory."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from bus.consumer_groups import records as group_records
from bus.consumer_groups.records import OffsetCommitted, OffsetTombstone, TxnOffsetsEnded, TxnOffsetsPending
from bus.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from bus.ports import KeyedRow
from bus.transactions import records as transaction_records
from bus.transactions.records import TransactionExpired, TransactionLogged
from tests.simulation.broker_invariants import Invariant
from tests.simulation.memos import read_rows
from tests.simulation.metadata_journal import version_of

if TYPE_CHECKING:
    from tests.simulation.broker_world import BrokerWorld
    from tests.simulation.metadata_journal import Version

_DECODERS = {
    TRANSACTION_STATE_TOPIC: transaction_records.decode_record,
    CONSUMER_OFFSETS_TOPIC: group_records.decode_record,
}
_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")
Identity = tuple[int, int]  # producer id and epoch
_PROOF = "bus/txn/"


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of a coordinator's log."""

    folder: str
    version: int
    offset: int
    at: float
    record: Any


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof, in a version of a partition, of a transaction that ended there."""

    transactional_id: str
    number: int
    identity: Identity | None  # of its rows; None: it was given up, and has none


@dataclass(slots=True)
class History:
    """A transactional id since it was made: all records. `numbers`: of each identity that rows carried, the number of
    its transaction."""

    records: list[TransactionLogged] = field(default_factory=list)
    numbers: dict[Identity, int] = field(default_factory=dict)

    def add(self, record: TransactionLogged) -> None:
        self.records.append(record)
        if record.state.value in _OPEN:
            self.numbers[rows_identity(record)] = record.number

    def states_of(self, number: int) -> list[str]:
        """Those of one transaction, in their order."""
        return [
            record.state.value for record in self.records if record.number == number and record.state.value != "Empty"
        ]


def rows_identity(record: TransactionLogged) -> Identity:
    """Return the identity in the rows of the open transaction: the decision has raised the epoch by one."""
    return record.producer_id, record.producer_epoch - record.state.value.startswith("Prepare")


class CoordinatorJournal(Invariant):
    """Stands before the invariants that ask it. What a power failure takes back never was."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self.entries: dict[str, list[Entry]] = defaultdict(list)  # by folder, in the order of their offsets
        self.new: list[Entry] = []  # those of the version that has just come
        # Of each record of a transactional id in `new`, the one before it in the same life of the id.
        self.changes: list[tuple[TransactionLogged | None, TransactionLogged]] = []
        self.ids: dict[str, History] = {}
        self.expired: dict[str, int] = {}  # the last number of an id that has expired, perhaps several times
        self._gone: set[str] = set()  # ids that have expired, and are known for as long as `new` is judged
        self.pending: dict[tuple[str, Identity], TxnOffsetsPending] = {}  # by group
        self.proofs: dict[tuple[str, int], list[Proof]] = {}  # by folder and version
        self._of_deleted: list[Proof] = []
        self.new_proofs: list[Proof] = []  # those of the version that has just come
        self._states: dict[str, dict[Any, Any]] = defaultdict(dict)  # by folder: key -> its last record
        self._snapshots: dict[str, list[tuple[int, Mapping[Any, Any]]]] = defaultdict(list)  # with the next offset

    def on_version(self, version: Version) -> None:
        self.new, self.changes = [], []
        self._forget_expired(*self._gone)
        if version.number == 0:
            for key in [each for each in self.proofs if each[0] == version.folder]:
                self._of_deleted += self.proofs.pop(key)  # the topic was made again
        self.new_proofs = list(_proofs_of(version))
        if self.new_proofs:
            self.proofs[version.folder, version.number] = self.new_proofs
        topic = version.folder.split("/")[1]
        if topic not in _DECODERS:
            return
        for action in version.actions:
            if "add" in action and action["add"]["dataChange"]:
                self.new += self._read(version, topic, unquote(action["add"]["path"]))
        if self.new:
            self.entries[version.folder] += self.new
            self._take(version.folder, self.new)

    def on_lost(self, key: str) -> None:
        name = version_of(key)
        if name is not None:
            self.proofs.pop(name, None)
        if name is None or name[0] not in self.entries:
            return
        for memory in (self.ids, self._gone, self.expired, self.pending, self._states, self._snapshots):
            memory.clear()
        for folder, entries in self.entries.items():
            self.entries[folder] = [entry for entry in entries if (folder, entry.version) != name]
            for entry in self.entries[folder]:
                self._take(folder, [entry])

    def _read(self, version: Version, topic: str, path: str) -> list[Entry]:
        data = self.world.disk.files.get(f"{version.folder}/{path}")
        decode, now = _DECODERS[topic], self.world.now
        return [
            Entry(version.folder, version.number, offset, now, decode(KeyedRow(key, value)))
            for offset, key, value in read_rows(data, "offset", "key", "value")
        ]

    def _take(self, folder: str, entries: list[Entry]) -> None:
        state = self._states[folder]
        for entry in entries:
            record = entry.record
            state[key_of(record)] = record
            match record:
                case TransactionExpired():
                    gone = self.ids.get(record.transactional_id)
                    if gone is not None:
                        self.expired[record.transactional_id] = max(each.number for each in gone.records)
                        self._gone.add(record.transactional_id)
                case TransactionLogged():
                    self._forget_expired(record.transactional_id)
                    history = self.ids.setdefault(record.transactional_id, History())
                    self.changes.append((history.records[-1] if history.records else None, record))
                    history.add(record)
                case TxnOffsetsPending():
                    self.pending[_pending_of(record)] = record
                case TxnOffsetsEnded():
                    self.pending.pop(_pending_of(record), None)
        self._snapshots[folder].append((entries[-1].offset + 1, dict(state)))

    def _forget_expired(self, *names: str) -> None:
        for name in self._gone.intersection(names):
            del self.ids[name]
            self._gone.remove(name)

    # ------------------------------------------------------------ asking

    def state_before(self, folder: str, offset: int) -> Mapping[Any, Any]:
        """Return the last record of each key below `offset`."""
        return next((state for end, state in reversed(self._snapshots[folder]) if end <= offset), {})

    def find(self, identity: Identity) -> tuple[str, History, int] | None:
        """Id, history and number of the transaction whose rows carry it; None: it was never open."""
        for name, history in self.ids.items():
            number = history.numbers.get(identity)
            if number is not None:
                return name, history, number
        for proof in self._all_proofs():
            if proof.identity == identity and proof.transactional_id in self.ids:
                return proof.transactional_id, self.ids[proof.transactional_id], proof.number
        return None

    def states_of(self, identity: Identity) -> list[str]:
        """Return the states of the transaction whose rows have this identity; none if it was never open. A version with
        its rows is the decision to commit it, if no record is."""
        found = self.find(identity)
        if found is None:
            return []
        name, history, number = found
        states = history.states_of(number)
        if any(state.startswith("Prepare") for state in states) or not self.is_proved(name, number):
            return states
        at = states.index("CompleteCommit") if "CompleteCommit" in states else len(states)
        return [*states[:at], "PrepareCommit", *states[at:]]

    def is_proved(self, transactional_id: str, number: int) -> bool:
        """A partition has rows of it."""
        return any(
            proof.identity is not None and (proof.transactional_id, proof.number) == (transactional_id, number)
            for proof in self._all_proofs()
        )

    def numbers_proved(self, transactional_id: str) -> set[int]:
        """Those that some partition has a mark of."""
        return {proof.number for proof in self._all_proofs() if proof.transactional_id == transactional_id}

    def is_given_up(self, transactional_id: str, number: int) -> bool:
        """A partition refuses it for ever."""
        return Proof(transactional_id, number, None) in self._all_proofs()

    def identity_of(self, transactional_id: str, number: int) -> Identity:
        """Return the identity in the rows of the transaction."""
        numbers = self.ids[transactional_id].numbers
        for identity, known in numbers.items():
            if known == number:
                return identity
        return next(
            proof.identity
            for proof in self._all_proofs()
            if proof.identity is not None and (proof.transactional_id, proof.number) == (transactional_id, number)
        )

    def _all_proofs(self) -> Iterator[Proof]:
        return itertools.chain(self._of_deleted, *self.proofs.values())


def _proofs_of(version: Version) -> Iterator[Proof]:
    named: dict[str, Any] = {}
    for action in version.actions:
        named |= action.get("commitInfo", {}).get("transactions", {})
    for txn in (action["txn"] for action in version.actions if "txn" in action):
        if txn["appId"].startswith(_PROOF) and txn["version"] >= 0:
            name, number = unquote(txn["appId"].removeprefix(_PROOF)), txn["version"] // 2
            yield Proof(name, number, tuple(named[txn["appId"]]) if txn["version"] % 2 else None)


def journal_of(world: BrokerWorld) -> CoordinatorJournal:
    return next(invariant for invariant in world.invariants if isinstance(invariant, CoordinatorJournal))


def key_of(record: Any) -> Any:
    match record:
        case TransactionLogged() | TransactionExpired():
            return record.transactional_id
        case OffsetCommitted() | OffsetTombstone():
            return "offset", record.group_id, record.partition
        case TxnOffsetsPending() | TxnOffsetsEnded():
            return "pending", record.group_id, record.transaction
        case _:
            return "group", record.group_id


def _pending_of(record: TxnOffsetsPending | TxnOffsetsEnded) -> tuple[str, Identity]:
    return record.group_id, (record.transaction.producer_id, record.transaction.producer_epoch)
