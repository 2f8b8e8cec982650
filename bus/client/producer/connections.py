"""Connections of the sender: the leaders of partitions according to the metadata, the requests under way to each
broker, and whether more may follow.

Guards two promises: one request for newer metadata is under way at a time, for all topics together, with a pause after
each; and one connection never has more than max.in.flight.requests.per.connection requests.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from bus.client.config.clients import ProducerConfig
from bus.client.connection.metadata_cache import LeaderHint, TopicInfo
from bus.client.producer.queue import Part, PartitionQueue
from bus.errors import BusError, ErrorCode, count_of
from bus.model import ProducerStamp


@dataclass(slots=True)
class Request:
    """The content of one request on a stream."""

    correlation_id: int
    parts: list[Part]
    sent_at_ms: float
    deadline_ms: float


class Connection:
    """To one broker: the requests that are not answered, oldest first."""

    __slots__ = ("address", "muted_until_ms", "requests")

    def __init__(self, address: str) -> None:
        self.address = address
        self.requests: deque[Request] = deque()
        self.muted_until_ms = 0.0  # the broker asked for a pause


@dataclass(frozen=True, slots=True)
class RefreshTopics:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InitProducer:
    """`producer_id` and `producer_epoch`: the present identity, to be followed by a higher epoch; None at first."""

    producer_id: int | None
    producer_epoch: int | None


@dataclass(frozen=True, slots=True)
class Resume:
    queue: PartitionQueue
    address: str
    topic_id: str
    producer_id: int
    producer_epoch: int


Errand = RefreshTopics | InitProducer | Resume


@dataclass(frozen=True, slots=True)
class Open:
    """`on_opened` or `on_not_opened` follows."""

    address: str


@dataclass(frozen=True, slots=True)
class Send:
    connection: Connection
    request: Request


@dataclass(frozen=True, slots=True)
class Cut:
    """An answer is late: nothing more is expected of the connection but its end."""

    connection: Connection
    reason: str


@dataclass(frozen=True, slots=True)
class Wake:
    """`tick` is due earlier than it last said: at `wakes_at_ms`."""


Instruction = Open | Send | Cut | Wake | Errand
_WAKE = Wake()


class Agenda:
    """The parts of the sender write it, its owner works it off."""

    __slots__ = ("instructions", "wakes_at_ms")

    def __init__(self) -> None:
        self.instructions: deque[Instruction] = deque()
        self.wakes_at_ms = 0.0  # when the next tick is due

    def add(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)

    def wake_by(self, at_ms: float) -> None:
        if at_ms < self.wakes_at_ms:
            self.wakes_at_ms = at_ms
            self.add(_WAKE)

    def wake_now(self) -> None:
        self.wakes_at_ms = 0.0
        self.add(_WAKE)


class Metadata(Protocol):
    """The part of the cluster's metadata that the sender uses; answers from memory only."""

    def topic(self, name: str) -> TopicInfo | None: ...

    def leader_address(self, info: TopicInfo, partition: int) -> str | None: ...

    def is_stale(self, info: TopicInfo) -> bool: ...

    def take_hint(self, topic: str, partition: int, hint: LeaderHint) -> object: ...


class Leaders:
    def __init__(self, metadata: Metadata, agenda: Agenda, backoff_ms: Callable[[int], float]) -> None:
        self._metadata = metadata
        self._agenda = agenda
        self._backoff_ms = backoff_ms
        self._stale_topics: set[str] = set()
        self._is_refreshing = False
        self._refresh_at_ms = 0.0
        self._failures = 0

    def find(self, queue: PartitionQueue) -> tuple[TopicInfo, str] | None:
        """The topic and the leader's address; None while they are not known: then a refresh is requested."""
        info = self._metadata.topic(queue.topic)
        if info is not None and queue.partition < len(info.partitions):
            address = self._metadata.leader_address(info, queue.partition)
            if address is not None:
                return info, address
        self.ask_for(queue.topic)
        return None

    def has_moved(self, queue: PartitionQueue, hint: LeaderHint) -> bool:
        """True if, with `hint`, another broker than the one that refused is known to lead the partition."""
        self._metadata.take_hint(queue.topic, queue.partition, hint)
        return self.is_elsewhere(queue)

    def is_elsewhere(self, queue: PartitionQueue) -> bool:
        """True if another broker leads the partition than the one that its last parts went to."""
        info = self._metadata.topic(queue.topic)
        if info is None or queue.partition >= len(info.partitions):
            return False
        return self._metadata.leader_address(info, queue.partition) not in (None, queue.address)

    def ask_for(self, topic: str) -> None:
        """Ask for newer metadata of the topic."""
        self._stale_topics.add(topic)
        self._agenda.wake_by(self._refresh_at_ms)

    def refresh(self, topics: Iterable[str], now_ms: float) -> None:
        """Those of `topics` that are old, and those that were asked for, if it is time."""
        if now_ms < self._refresh_at_ms or self._is_refreshing:
            return
        for topic in topics:
            info = self._metadata.topic(topic)
            if info is not None and self._metadata.is_stale(info):
                self._stale_topics.add(topic)
        if self._stale_topics:
            self._is_refreshing = True
            self._agenda.add(RefreshTopics(tuple(self._stale_topics)))

    def on_refreshed(self, results: Mapping[str, BusError | None], now_ms: float) -> list[tuple[str, int, BusError]]:
        """`results`: None, or why nothing is known of a topic. Returns the partitions that are gone: a topic, its
        first missing partition, and the error."""
        self._is_refreshing = False
        gone: list[tuple[str, int, BusError]] = []
        failed = False
        for topic, error in results.items():
            if error is None:
                self._stale_topics.discard(topic)
                gone.append(self._missing_of(topic))
            elif not error.retriable or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._stale_topics.discard(topic)
                gone.append((topic, 0, error))
            else:
                failed = True
        self._refresh_at_ms = now_ms + self._backoff_ms(self._failures)
        self._failures = self._failures + 1 if failed else 0
        self._agenda.wake_by(self._refresh_at_ms)
        return gone

    def _missing_of(self, topic: str) -> tuple[str, int, BusError]:
        info = self._metadata.topic(topic)
        count = len(info.partitions) if info is not None else 0
        message = f"topic {topic!r} has {count_of(count, 'partition')} now"
        return topic, count, BusError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)

    def next_event(self) -> float:
        return self._refresh_at_ms if self._stale_topics and not self._is_refreshing else math.inf


class Connections:
    def __init__(self, config: ProducerConfig, agenda: Agenda) -> None:
        self.by_address: dict[str, Connection] = {}
        self.timeout_ms = min(config.request_timeout_ms, config.delivery_timeout_ms)  # the time-out of a request
        self._window = config.max_in_flight_requests_per_connection
        self._agenda = agenda
        self._opening: dict[str, bool] = {}  # addresses of streams to come, and whether what waits there is in a hurry
        self._correlation_id = 0

    def count_requests(self) -> int:
        return sum(len(connection.requests) for connection in list(self.by_address.values()))

    def has_window(self, now_ms: float) -> bool:
        return not self.by_address or any(self._is_open(found, now_ms) for found in self.by_address.values())

    def may_send_to(self, address: str, now_ms: float) -> bool:
        connection = self.by_address.get(address)
        return address not in self._opening if connection is None else self._is_open(connection, now_ms)

    def _is_open(self, connection: Connection, now_ms: float) -> bool:
        return len(connection.requests) < self._window and now_ms >= connection.muted_until_ms

    def open(self, address: str, *, is_hurried: bool) -> None:
        self._opening[address] = is_hurried
        self._agenda.add(Open(address))

    def on_opened(self, address: str) -> tuple[Connection, bool]:
        """The connection, and whether what waits for it is in a hurry."""
        connection = self.by_address[address] = Connection(address)
        return connection, self._opening.pop(address)

    def on_not_opened(self, address: str) -> None:
        del self._opening[address]

    def send(self, connection: Connection, parts: list[Part], now_ms: float) -> None:
        self._correlation_id += 1
        request = Request(self._correlation_id, parts, now_ms, now_ms + self.timeout_ms)
        connection.requests.append(request)
        self._agenda.add(Send(connection, request))

    def take_answered(self, connection: Connection, correlation_id: int, part_count: int) -> Request:
        """The oldest request. Raises `ValueError` if the answer does not fit it; then it stays."""
        request = connection.requests[0] if connection.requests else None
        if request is None or request.correlation_id != correlation_id:
            expected = "no answer" if request is None else f"answer {request.correlation_id}"
            raise ValueError(f"expected {expected}, found answer {correlation_id}")
        if len(request.parts) != part_count:
            raise ValueError(f"expected {count_of(len(request.parts), 'partition')}, found {part_count}")
        connection.requests.popleft()
        return request

    def mute(self, connection: Connection, until_ms: float) -> None:
        connection.muted_until_ms = until_ms
        self._agenda.wake_by(until_ms)

    def cut_silent(self, now_ms: float) -> None:
        """Those whose oldest request is overdue, each once: their end comes from their own threads."""
        for connection in self.by_address.values():
            if connection.requests and now_ms >= connection.requests[0].deadline_ms:
                connection.requests[0].deadline_ms = math.inf
                reason = f"no answer of the broker at {connection.address} within request.timeout.ms"
                self._agenda.add(Cut(connection, reason))

    def next_events(self, now_ms: float) -> Iterator[float]:
        for connection in self.by_address.values():
            if connection.requests:
                yield connection.requests[0].deadline_ms
            if connection.muted_until_ms > now_ms:
                yield connection.muted_until_ms

    def take_all(self) -> list[Connection]:
        """The producer is closed."""
        connections = list(self.by_address.values())
        self.by_address.clear()
        return connections


EPOCH_MAX = 2**15 - 1


class Identity:
    """The producer id and epoch of the producer: requests for them, and the epoch under which a partition is resumed.

    Guards one promise: one request is under way at a time, repeated with growing pauses. The broker gives a named
    producer its epochs, for all partitions; any other producer counts them up here, for one partition, as in Kafka. One
    that is given stays what it is.
    """

    def __init__(
        self,
        config: ProducerConfig,
        agenda: Agenda,
        backoff_ms: Callable[[int], float],
        given: tuple[int, int] | None = None,
    ) -> None:
        self.current = given  # producer id and epoch
        self.is_given = given is not None
        self._is_named = config.name is not None
        self._is_transactional = config.transactional_id is not None
        self._agenda = agenda
        self._backoff_ms = backoff_ms
        self._is_asking = False
        self._retry_at_ms = 0.0
        self._failures = 0

    def ask(self, now_ms: float) -> None:
        if self._is_transactional:
            return  # the user asks for it, and the end of each transaction gives the next one
        if not self._is_asking and now_ms >= self._retry_at_ms:
            self._is_asking = True
            self._agenda.add(InitProducer(*(self.current or (None, None))))

    def on_given(self, producer_id: int, producer_epoch: int) -> None:
        self._is_asking = False
        self._failures = 0
        self.current = (producer_id, producer_epoch)

    def on_failed(self, now_ms: float, *, is_retriable: bool) -> None:
        self._is_asking = False
        if is_retriable:
            self._retry_at_ms = now_ms + self._backoff_ms(self._failures)
            self._failures += 1
            self._agenda.wake_by(self._retry_at_ms)

    def next_event(self, now_ms: float) -> float:
        return self._retry_at_ms if self._retry_at_ms > now_ms else math.inf

    # ------------------------------------------------------------ of a partition

    def begin(self, queue: PartitionQueue) -> None:
        if self.current is not None:
            queue.begin(ProducerStamp(*self.current, 0))
            queue.needs_resume = self._is_named

    def is_newer_than(self, part: Part) -> bool:
        """A named producer has one epoch for all partitions; those that have not moved to it yet do so now."""
        if not self._is_named or part.stamp is None or self.current is None:
            return False
        return part.stamp.producer_epoch < self.current[1]

    def resume(self, queue: PartitionQueue, address: str, now_ms: float) -> None:
        """Under the next epoch; a named producer asks the broker for it."""
        stamp = queue.stamp_next
        if stamp is None or self.current is None:
            self.ask(now_ms)
            return
        epoch = self.current[1] if self._is_named else stamp.producer_epoch + 1
        if self._is_named and queue.is_resumed and stamp.producer_epoch >= epoch:
            self.ask(now_ms)
            return
        queue.is_resuming = True
        self._agenda.add(Resume(queue, address, queue.topic_id, stamp.producer_id, epoch))

    def on_resumed(self, queue: PartitionQueue, epoch: int) -> None:
        if epoch >= EPOCH_MAX and not self._is_named:
            # The remaining records are not in the log, so they can have another producer id.
            self.current = queue.stamp_next = None
