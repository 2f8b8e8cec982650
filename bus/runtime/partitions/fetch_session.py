"""Fetch sessions (KIP-227): the partitions that the fetches of one stream ask for, kept from one fetch to the next, so
that a fetch looks only at partitions that have changed since the fetch before it.

Theory of operation. Each requested partition has an entry, which is a reader of the partition: a commit, a reload and
the end of the partition wake it. An entry is *due* if the next fetch has to look at it: it was woken, is new, was
requested at another offset, or had records or a refusal at the last look. It leaves `due` only when a look finds
nothing to read and nothing to report. Guards one promise: a fetch of a session answers what a fetch of all its
partitions would, except for partitions about which the session has reported everything.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from bus.errors import Refused, StorageFault
from bus.model import TopicPartition
from bus.partition_log.reads import NotYet, Readable
from bus.runtime.partitions.partition import ReadResult
from bus.runtime.tasks import LoopShare, Wakeable

# The bound for all sessions of a broker: about 100 MB of entries.
POSITIONS_MAX = 200_000


class FetchPosition(NamedTuple):  # a tuple: one is made for each partition of each fetch
    partition: TopicPartition
    topic_id: str  # empty: not checked
    offset: int
    bytes_max: int
    current_leader_epoch: int | None
    seen_version: int | None = None  # the newest Delta version that the reader has seen


class Fetchable(Protocol):
    """A partition as a fetch reads it, on its leader or on a follower: see `Partition`."""

    def decide_fetch(
        self, offset: int, current_leader_epoch: int | None, seen_version: int | None = None
    ) -> Readable | NotYet | Refused: ...

    def bytes_available(self, readable: Readable, enough: int) -> int: ...

    async def read(self, readable: Readable, max_bytes: int) -> ReadResult | Refused: ...

    def refuse_read(self, fault: StorageFault) -> Refused: ...

    def add_reader(self, event: Wakeable) -> None: ...

    def remove_reader(self, event: Wakeable) -> None: ...


FindPartition = Callable[[TopicPartition, str], "Fetchable | Refused"]
Decision = tuple[Fetchable, Readable | NotYet]


class Entry:
    """One partition. `has_news`: it was woken since the session told of it, or the session has never told of it."""

    __slots__ = ("_partition", "_session", "has_news", "position")

    def __init__(self, session: FetchSession, position: FetchPosition) -> None:
        self._session = session
        self._partition: Fetchable | None = None  # this entry is a reader of it
        self.position = position
        self.has_news = True

    def set(self) -> None:
        """There may be more to tell. Called by the partition."""
        self.has_news = True
        self._session.note(self)

    def decide(self, find_partition: FindPartition) -> Decision | Refused:
        """Decide what may be read. The entry becomes a reader of the partition before it looks, so that it misses no
        commit in between."""
        position = self.position
        found = find_partition(position.partition, position.topic_id)
        if isinstance(found, Refused):
            self.leave()
            return found
        if found != self._partition:  # it has another leader now, so it is another one
            self.leave()
            found.add_reader(self)
            self._partition = found
        decision = found.decide_fetch(position.offset, position.current_leader_epoch, position.seen_version)
        return decision if isinstance(decision, Refused) else (found, decision)

    def leave(self) -> None:
        partition, self._partition = self._partition, None
        if partition is not None:
            partition.remove_reader(self)


class FetchSession:
    """`close` it, or its entries are woken for ever. `sessions`: of the broker, where it counts."""

    def __init__(self, sessions: FetchSessions | None = None) -> None:
        self.wake = asyncio.Event()  # set when an entry has news
        self.bytes_max = 0  # the requested bound for all partitions together
        self.is_as_asked = True  # it has every partition that its reader named, so the reader may continue it
        self._sessions = sessions or FetchSessions()
        self._entries: dict[TopicPartition, Entry] = {}
        self._topics: Counter[str] = Counter()  # how many entries each has
        self._due: dict[Entry, None] = {}  # in the order in which they are to be served

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, position: FetchPosition) -> None:
        """Ask for a partition, or ask for it at another offset."""
        entry = self._entries.get(position.partition)
        if entry is None:
            entry = self._entries[position.partition] = Entry(self, position)
            self._topics[position.partition.topic] += 1
            self._sessions.positions += 1
        else:
            self.bytes_max -= entry.position.bytes_max
            entry.position = position
        self.bytes_max += position.bytes_max
        self._due[entry] = None

    async def put_all(self, positions: Iterable[FetchPosition], share: LoopShare) -> None:
        for position in positions:
            if share.is_used_up:
                await share.wait()
            self.put(position)

    def forget(self, name: TopicPartition) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            entry.leave()
            self._due.pop(entry, None)
            self.bytes_max -= entry.position.bytes_max
            self._topics[name.topic] -= 1
            self._sessions.positions -= 1

    @property
    def topics(self) -> Sequence[str]:
        return [topic for topic, count in self._topics.items() if count]

    def forget_topics(self, topics: Collection[str]) -> Sequence[TopicPartition]:
        """The partitions of them that the session held."""
        names = [name for name in self._entries if name.topic in topics] if topics else []
        for name in names:
            self.forget(name)
        return names

    def close(self) -> None:
        for entry in self._entries.values():
            entry.leave()
        self._sessions.positions -= len(self._entries)
        self._entries.clear()
        self._topics.clear()
        self._due.clear()

    # ------------------------------------------------------------ what is due

    def due(self) -> Sequence[Entry]:
        return list(self._due)

    def note(self, entry: Entry) -> None:
        self._due[entry] = None
        self.wake.set()

    def note_all(self) -> None:
        """Mark all entries as due: the last answers about them no longer hold."""
        for entry in self._entries.values():
            entry.has_news = True
            self._due[entry] = None

    def rest(self, entry: Entry) -> None:
        """Take the entry from `due`: everything is reported, and there is nothing to read."""
        self._due.pop(entry, None)

    def serve_last(self, entry: Entry) -> None:
        """It was given records: the others that are due have their turn first."""
        if entry in self._due:
            del self._due[entry]
            self._due[entry] = None


class FetchSessions:
    """How much the sessions of a broker keep together: a session that begins when that is too much is not kept."""

    def __init__(self, positions_max: int = POSITIONS_MAX) -> None:
        self._positions_max = positions_max
        self.positions = 0

    @property
    def has_room(self) -> bool:
        return self.positions <= self._positions_max
