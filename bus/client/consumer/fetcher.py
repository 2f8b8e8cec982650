"""The consumer's engine: one Fetch stream to each leader, the next request under way before the last answer is used.
A leader may send it to a replica (assigned_partition.py), which is asked as a leader is, and left at its first error.

Guards two promises: an answer is used only for the very position that was asked for, so a seek never meets stale
records; and what is fetched ahead is bounded, for a partition by twice max.partition.fetch.bytes and for a leader by
fetch.max.bytes, plus one answer each. Its lock guards the assigned partitions as well; the consumer takes it.

A request is for every partition that may be fetched, so one long poll covers them all; it leaves when all of them have
room. A broker keeps what the last request on a stream was for, so that the next one names only what has changed
(KIP-227). A partition that becomes fetchable during a long poll ends that poll instead of waiting for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from bus.client.config.clients import ConsumerConfig
from bus.client.connection.cluster import Cluster
from bus.client.connection.fetch_requests import Fetched, FetchedPartition, FetchPosition, decode_fetch, encode_fetch
from bus.client.connection.metadata_cache import LeaderHint
from bus.client.connection.produce_requests import ThrottleLog
from bus.client.connection.request_stream import RequestStream
from bus.client.connection.retrying import FAILURES_UNREPORTED, ITEMS_MAX, monotonic_ms
from bus.client.consumer.assigned_partition import AssignedPartition, note_failed, note_named, note_served
from bus.client.consumer.metrics import ConsumerMetrics
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.platform.reentry import OwnCondition, OwnLock, logger_of

logger = logger_of(__name__)

_READ_AHEAD = 2  # answers a partition


class _Connection:
    __slots__ = ("correlation_id", "deadline_ms", "kept", "muted_until_ms", "requested", "requested_at_ms", "stream")

    def __init__(self, stream: RequestStream) -> None:
        self.stream = stream
        self.requested: dict[TopicPartition, FetchPosition] | None = None  # the request under way; None: there is none
        # the partitions that the broker remembers; None: none
        self.kept: dict[TopicPartition, FetchPosition] | None = None
        self.requested_at_ms = 0.0
        self.correlation_id = 0
        self.deadline_ms = 0.0
        self.muted_until_ms = 0.0  # the broker takes no request before, as the client's quota is used up


class Fetcher:
    def __init__(self, cluster: Cluster, config: ConsumerConfig) -> None:
        self._cluster = cluster
        self._config = config
        self.lock = OwnLock()
        self.changed = OwnCondition(self.lock)  # records came, or an error, or a wake-up
        self.assigned: dict[TopicPartition, AssignedPartition] = {}
        self.metrics = ConsumerMetrics(config, lambda: list(self.assigned.values()))
        self._connections: dict[str, _Connection] = {}
        self._throttles = ThrottleLog(config.client_id, "consumer_byte_rate")
        self._turn = 0
        self._is_closed = False

    # ------------------------------------------------------------ the lock is held

    def fetch(self, now_ms: float) -> None:
        """Have a request under way to every leader or replica, where there is something to ask for and room for the
        answer."""
        if self._is_closed:
            return
        for address, partitions in self._by_broker(now_ms).items():
            connection = self._connections.get(address)
            if connection is not None and connection.requested is not None:
                if all(partition.partition in connection.requested or partition.buffer for partition in partitions):
                    continue
                self._cut(address)  # another partition has room for data, but this request does not include it
            self._ask(address, partitions, now_ms)

    def fetch_anew(self, partition: TopicPartition) -> None:
        """Cut the request under way for `partition`: its answer is useless now."""
        for address, connection in list(self._connections.items()):
            if connection.requested is not None and partition in connection.requested:
                self._cut(address)

    def reassign(self, partitions: Iterable[TopicPartition], *, has_committed: bool) -> None:
        """Fetch these and no others; those that were assigned before stay as they are. `has_committed`: the group may
        know where the new ones begin."""
        kept = self.assigned
        wanted = list(dict.fromkeys(partitions))
        self.assigned = {key: kept.get(key) or AssignedPartition(key, has_committed=has_committed) for key in wanted}
        for key in kept.keys() - self.assigned.keys():
            self.fetch_anew(key)

    @property
    def is_connected(self) -> bool:
        return bool(self._connections)

    def cut_all(self) -> None:
        for address in list(self._connections):
            self._cut(address)

    def close(self) -> None:
        with self.lock:
            self._is_closed = True
            streams = [connection.stream for connection in self._connections.values()]
            self.cut_all()
            self.changed.notify_all()
        for stream in streams:
            stream.join(2.0)

    def cut_silent(self, now_ms: float) -> None:
        for address, connection in list(self._connections.items()):
            if connection.requested is not None and now_ms >= connection.deadline_ms:
                error = BusError(ErrorCode.REQUEST_TIMED_OUT, f"no answer of the broker at {address}")
                self._note_broken(connection, error, now_ms)
                self._cut(address, is_late=True)

    def next_event(self, now_ms: float) -> float:
        """When `fetch` may have more to do without any answer."""
        events = [partition.retry_at_ms for partition in self.assigned.values() if partition.retry_at_ms > now_ms]
        for connection in self._connections.values():
            if connection.requested is not None:
                events.append(connection.deadline_ms)
            elif connection.muted_until_ms > now_ms:
                events.append(connection.muted_until_ms)
        return min(events, default=now_ms + 60_000)

    def _by_broker(self, now_ms: float) -> dict[str, list[AssignedPartition]]:
        found: dict[str, list[AssignedPartition]] = {}
        for partition in self.assigned.values():
            if partition.is_fetchable(now_ms) and not partition.is_leader_doubtful:
                address = self._replica(partition, now_ms) or self._leader(partition)
                if address is not None:
                    found.setdefault(address, []).append(partition)
                elif self._cluster.metadata.topic(partition.partition.topic) is not None:
                    partition.is_leader_doubtful = True  # a broker named a leader that the latest metadata do not have
        return found

    def _replica(self, partition: AssignedPartition, now_ms: float) -> str | None:
        """The address of the one to be asked instead of the leader; None: the leader."""
        replica_id = partition.read_replica.at(now_ms)
        address = None if replica_id is None else self._cluster.metadata.broker_address(replica_id)
        if replica_id is not None and address is None:
            partition.read_replica = note_failed(partition.read_replica, replica_id, now_ms)
        return address

    def _leader(self, partition: AssignedPartition) -> str | None:
        info = self._cluster.metadata.topic(partition.partition.topic)
        if info is None or partition.partition.partition >= len(info.partitions):
            return None
        return self._cluster.metadata.leader_address(info, partition.partition.partition)

    def _ask(self, address: str, partitions: list[AssignedPartition], now_ms: float) -> None:
        room = self._config.max_partition_fetch_bytes * _READ_AHEAD
        if any(partition.buffered_bytes >= room for partition in partitions):
            return
        if sum(partition.buffered_bytes for partition in partitions) >= self._config.fetch_max_bytes:
            return
        connection = self._connections.get(address)
        if connection is not None and now_ms < connection.muted_until_ms:
            return
        if connection is None:
            try:
                stream = RequestStream(self._cluster, address, "Fetch", on_answer=self._on_answer, on_end=self._on_end)
            except Exception as failure:  # the partitions are tried again, as after any other failure
                self._note_not_opened(address, partitions, failure, now_ms)
                return
            connection = self._connections[address] = _Connection(stream)
        # Each partition comes first in its turn: an answer that is full leaves out the last ones. Those that a request
        # has no room for come first in the next one.
        self._turn += 1 if len(partitions) <= ITEMS_MAX else ITEMS_MAX
        first = self._turn % len(partitions)
        partitions = (partitions[first:] + partitions[:first])[:ITEMS_MAX]
        connection.requested = {
            partition.partition: partition.next_fetch(partition.read_replica.at(now_ms)) for partition in partitions
        }
        connection.correlation_id += 1
        connection.requested_at_ms = now_ms
        connection.deadline_ms = now_ms + self._config.fetch_max_wait_ms + self._config.request_timeout_ms
        kept, connection.kept = connection.kept, None
        connection.stream.send(encode_fetch(self._config, connection.correlation_id, connection.requested, kept=kept))

    def _note_not_opened(
        self, address: str, partitions: Iterable[AssignedPartition], failure: Exception, now_ms: float
    ) -> None:
        error = failure if isinstance(failure, BusError) else None
        if error is None:
            error = BusError(ErrorCode.NETWORK_EXCEPTION, f"a stream to {address} could not be opened: {failure!r}")
        for partition in partitions:
            self._note_failure(partition, partition.read_replica.at(now_ms), error, now_ms)

    def _cut(self, address: str, *, is_late: bool = False) -> None:
        self._connections.pop(address).stream.cut("not needed any more", is_late=is_late)

    # ------------------------------------------------------------ answers, on a stream's reading thread

    def _on_answer(self, stream: RequestStream, response: Any) -> None:
        now_ms = monotonic_ms()
        fetched = decode_fetch(response)
        with self.lock:
            connection = self._connections.get(stream.address)
            if connection is None or connection.stream is not stream:
                return
            requested, connection.requested = connection.requested, None
            if requested is None or fetched.correlation_id != connection.correlation_id:
                raise ValueError(f"expected answer {connection.correlation_id}, found {fetched.correlation_id}")
            connection.muted_until_ms = now_ms + fetched.throttle_time_ms
            self._throttles.note(fetched.throttle_time_ms, stream.address, now_ms)
            connection.kept = requested if fetched.in_session else None
            self._record(fetched, connection.requested_at_ms, now_ms)
            is_news = False
            for answer in fetched.partitions:
                is_news = self._take_answer(answer, requested, now_ms) or is_news
            self.fetch(now_ms)
            if is_news:
                self.changed.notify_all()

    def _record(self, fetched: Fetched, requested_at_ms: float, now_ms: float) -> None:
        sizes: dict[str, tuple[int, int]] = {}
        for answer in fetched.partitions:
            size, records = sizes.get(answer.partition.topic, (0, 0))
            records += sum(batch.record_count for batch in answer.batches)
            sizes[answer.partition.topic] = size + answer.size_bytes, records
        self.metrics.record_fetch(sizes, now_ms - requested_at_ms, fetched.throttle_time_ms, now_ms)

    def _take_answer(
        self, answer: FetchedPartition, requested: Mapping[TopicPartition, FetchPosition], now_ms: float
    ) -> bool:
        partition, position = self.assigned.get(answer.partition), requested.get(answer.partition)
        if partition is None or partition.position is None or position is None:
            return False
        if partition.fetch_offset != position.offset:
            return False
        if answer.error is not None:
            is_hint_new = answer.leader is not None and self._follow_hint(partition, answer.leader)
            if position.replica_id is not None:
                self._leave_replica(partition, position.replica_id, answer.error, now_ms)
            elif not is_hint_new:
                self._note_error(partition, answer.error, now_ms)
            return True
        partition.high_watermark, partition.log_start = answer.high_watermark, answer.log_start
        partition.version = max(partition.version, answer.version)
        partition.take_in(answer.batches)
        self._note_replica(partition, position, answer, now_ms)
        return bool(answer.batches)

    def _note_replica(
        self, partition: AssignedPartition, requested: FetchPosition, answer: FetchedPartition, now_ms: float
    ) -> None:
        """Note the replica in an answer without an error."""
        if requested.replica_id is not None and answer.batches:
            partition.read_replica = note_served(partition.read_replica)
        if answer.read_replica is not None:
            before = partition.read_replica.at(now_ms)
            partition.read_replica = note_named(
                partition.read_replica, answer.read_replica, now_ms, age_ms_max=self._config.metadata_max_age_ms
            )
            if (named := partition.read_replica.at(now_ms)) != before:
                logger.info("%s is read at broker %s, which its leader has named", partition.partition, named)

    def _leave_replica(self, partition: AssignedPartition, replica_id: int, error: BusError, now_ms: float) -> None:
        """Ask the leader, whatever the error is: only the leader knows which offsets there are, and which records
        cannot be read."""
        partition.read_replica = note_failed(partition.read_replica, replica_id, now_ms)
        logger.info("%s is read at its leader again, not at broker %d: %s", partition.partition, replica_id, error)

    def _follow_hint(self, partition: AssignedPartition, hint: LeaderHint) -> bool:
        """Ask the new leader at once. False if no newer leader epoch is known than that of the request."""
        key = partition.partition
        self._cluster.metadata.take_hint(key.topic, key.partition, hint)
        info = self._cluster.metadata.topic(key.topic)
        if info is None or info.topic_id != partition.topic_id or key.partition >= len(info.partitions):
            return False
        leader = info.partitions[key.partition]
        if leader.leader_epoch <= partition.leader_epoch:
            return False
        logger.info("%s is led by broker %d at leader epoch %d", key, leader.leader_id, leader.leader_epoch)
        partition.leader_epoch = leader.leader_epoch
        return True

    def _note_error(self, partition: AssignedPartition, error: BusError, now_ms: float) -> None:
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._note_out_of_range(partition, error, now_ms)
        elif error.code is ErrorCode.CORRUPT_MESSAGE:
            # Asking again does not restore what the disk lost. The user may seek past it.
            self._note_unreadable(partition, error, now_ms)
        elif error.retriable:
            level = logging.WARNING if partition.failures == FAILURES_UNREPORTED else logging.DEBUG
            logger.log(level, "fetching %s is tried again: %s", partition.partition, error)
            self.put_off(partition, now_ms)
            partition.is_leader_doubtful = True
        else:
            partition.error = error

    def _note_unreadable(self, partition: AssignedPartition, error: BusError, now_ms: float) -> None:
        if partition.buffer:
            # The records fetched before are still good: ask again when they are used up.
            partition.retry_at_ms = now_ms + self._cluster.backoff.ms(0)
        else:
            partition.error = BusError(
                error.code,
                f"{partition.partition}: the record at offset {partition.fetch_offset} cannot be read; seek past it "
                f"to go on: {error.message}",
            )

    def put_off(self, partition: AssignedPartition, now_ms: float) -> None:
        partition.retry_at_ms = now_ms + self._cluster.backoff.ms(partition.failures)
        partition.failures += 1

    def _note_out_of_range(self, partition: AssignedPartition, error: BusError, now_ms: float) -> None:
        if partition.buffer:
            # The records fetched before are still good: ask again when they are used up.
            partition.retry_at_ms = now_ms + self._cluster.backoff.ms(0)
        elif self._config.auto_offset_reset == "none":
            partition.error = error
        else:
            logger.warning("%s: resetting the position: %s", partition.partition, error)
            partition.unset_position(None)

    def _on_end(self, stream: RequestStream, error: BusError) -> None:
        with self.lock:
            connection = self._connections.get(stream.address)
            if connection is None or connection.stream is not stream:
                return
            del self._connections[stream.address]
            self._note_broken(connection, error, monotonic_ms())
            self.changed.notify_all()

    def _note_broken(self, connection: _Connection, error: BusError, now_ms: float) -> None:
        for key, position in (connection.requested or {}).items():
            partition = self.assigned.get(key)
            if partition is not None:
                self._note_failure(partition, position.replica_id, error, now_ms)

    def _note_failure(
        self, partition: AssignedPartition, replica_id: int | None, error: BusError, now_ms: float
    ) -> None:
        """The streams' owner for this replica, or for the leader (None)."""
        if replica_id is not None:
            self._leave_replica(partition, replica_id, error, now_ms)
        else:
            self._note_error(partition, error, now_ms)
