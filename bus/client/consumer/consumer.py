"""The consumer that users hold: what it reads and where it stands, records and Arrow tables out, offsets committed.

Guards the contract of the position: it is the offset of the next record that the user gets, whichever way (poll,
poll_arrow or iteration) the last one came. Finding leaders and positions, joining a group and every callback happen in
the caller's thread, inside poll; fetching ahead and heartbeats happen beside it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from bus.client.arguments import (
    INT_64_MAX,
    check_flag,
    check_integer,
    check_mapping,
    check_milliseconds,
    check_timeout,
    check_topic,
    check_topic_partition,
    check_topic_partitions,
    wrong_type,
    wrong_value,
)
from bus.client.config.clients import ConsumerConfig
from bus.client.config.parsing import MISSING, EffectiveSetting, client_addresses, describe, parse_with_origins
from bus.client.connection.cluster import Cluster
from bus.client.connection.leader_calls import list_offsets
from bus.client.connection.retrying import monotonic_ms
from bus.client.consumer.assigned_partition import AssignedPartition
from bus.client.consumer.fetcher import Fetcher
from bus.client.consumer.group_client import GroupClient
from bus.client.consumer.misuse import OneThread, end_when_forgotten, exclusive
from bus.client.consumer.positions import Positions
from bus.client.consumer.record_reader import RecordReader, Runs
from bus.client.consumer.records import Deserializers, PollTables, RecordBuilder, RecordDeserializationError
from bus.client.group.group_topics import RebalanceCallback, subscription_of
from bus.client.group.offset_commits import CommitCallback
from bus.client.interceptors import ConsumerInterceptorChain, close_all
from bus.client.values import ConsumerRecord, GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, check_committed
from bus.errors import BusError, ErrorCode
from bus.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from bus.platform.reentry import check_outside, logger_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bus.client.config.typed_settings import ConsumerSettings

ToCommit = Mapping[TopicPartition, int | OffsetAndMetadata] | ConsumerRecord

logger = logger_of(__name__)

CLOSE_TIMEOUT_S = 30.0
_FOREVER_S = 1e9  # less than the clocks of threads take

ConsumerT = TypeVar("ConsumerT", bound="Consumer")


class Consumer(OneThread):
    """Reads partitions in offset order within each: those that `assign` names, or those that its group gives it after
    `subscribe`. For one thread at a time; only `wakeup` may come from another.

    Takes Kafka's configs with underscores for dots; an unknown one is an error. Raises `BusError` INVALID_CONFIG.
    `auto_offset_reset` (latest unless given): where to go without a position or a committed offset, or when the
    position is no longer, or not yet, in the log. No connection is made before the first call that needs one.
    """

    def __init__(self, address: str | list[str] = MISSING, **configs: Unpack[ConsumerSettings]) -> None:
        super().__init__()
        self._config, self._origins = parse_with_origins(ConsumerConfig, configs)
        self._addresses = client_addresses(address, configs)
        self._cluster = Cluster(self._addresses, self._config)
        self._fetcher = Fetcher(self._cluster, self._config)
        self._metrics = self._fetcher.metrics
        self._interceptors = ConsumerInterceptorChain(self._config.interceptors)
        self._builder = RecordBuilder(Deserializers(self._config.key_deserializer, self._config.value_deserializer))
        self._group: GroupClient | None = None
        if self._config.group_id is not None:
            self._group = GroupClient(
                self._cluster,
                self._config,
                self._fetcher,
                self._metrics,
                on_commit=self._interceptors.on_commit,
            )
        group = self._group  # none of these may refer to the consumer itself: it may be forgotten
        self._positions = Positions(
            self._cluster,
            self._config,
            self._fetcher,
            group,
            is_shared=lambda: group is not None and group.subscription is not None,
        )
        self._reader = RecordReader(
            self._fetcher, self._positions, self._group, self._config, self._builder, self._metrics
        )
        if group is not None:
            group.on_change = self._reader.stop_iterating
        self._finalizer = end_when_forgotten(self, group, self._fetcher, self._cluster)
        self._tables = PollTables()
        self._extra: list[ConsumerRecord] = []  # added by interceptors, for the iteration; the next one is the last
        self._rejected: RecordDeserializationError | None = None  # to be raised by the next poll
        self._is_closing = False

    def describe_settings(self) -> dict[str, EffectiveSetting]:
        """The settings that this client has, by name, each with where it is from: the program, the command line, the
        environment, the profile, or the default. Secrets are hidden."""
        return describe(self._config, self._origins)

    # ------------------------------------------------------------ what to read

    @exclusive
    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Read these topics, or all whose whole name matches `pattern`, together with the other members of the group;
        replaces an earlier subscription. The next poll joins.

        The callbacks run inside `poll`, each with a list of partitions: what this consumer reads from now on; what it
        is about to give up, and may still commit; what it has lost already, to others perhaps (without `on_lost` that
        is `on_revoked`'s). An empty list of topics is `unsubscribe`. Raises `BusError`.
        """
        self._reader.check_open()
        group = self._needed_group("subscribe")
        if self._fetcher.assigned and not self._is_subscribed:
            raise BusError(
                ErrorCode.INVALID_REQUEST,
                f"subscribe after assign: expected no partitions of assign(), found {len(self._fetcher.assigned)}; "
                f"call unsubscribe() first",
            )
        subscription = subscription_of(topics, pattern, on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost)
        if subscription is None:
            self.unsubscribe()
        else:
            group.subscribe(subscription)

    @exclusive
    def unsubscribe(self) -> None:
        """Read nothing any more. Partitions of the group are given up as at a revocation, and the group is left. Called
        while an exception is on its way, it commits nothing of what was given last, as `close`."""
        self._reader.check_open()
        if sys.exc_info()[1] is not None:
            self._reader.give_back()
        if self._group is not None and self._is_subscribed:
            deadline_ms = monotonic_ms() + self._config.default_api_timeout_ms
            self._group.unsubscribe(deadline_ms, "the consumer unsubscribed from all topics")
        else:
            self.assign(())

    def subscription(self) -> set[str]:
        """The topics of `subscribe`; of a pattern those that it matched when it was last looked at."""
        group = self._group
        if group is None or group.subscription is None:
            return set()
        return set(group.membership.topics or group.subscription.topics)

    @exclusive
    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions and no others, without a group's say. One that was assigned before keeps its
        position; with a `group_id` another one begins where the group committed. Raises `BusError`."""
        self._reader.check_open()
        wanted = [_no_negative(partition) for partition in check_topic_partitions("partitions", partitions)]
        if self._is_subscribed:
            raise BusError(
                ErrorCode.INVALID_REQUEST,
                "assign after subscribe: expected no subscription, found one; call unsubscribe() first",
            )
        self._reader.stop_iterating()
        with self._fetcher.lock:
            self._fetcher.reassign(wanted, has_committed=self._group is not None)
            if self._group is not None:
                self._group.commits.start_auto(monotonic_ms())

    def assignment(self) -> set[TopicPartition]:
        return set(self._fetcher.assigned)

    @exclusive
    def enforce_rebalance(self, reason: str = "enforce_rebalance() was called") -> None:
        """Have the group rebalance at the next poll."""
        self._reader.check_open()
        if self._group is None or not self._is_subscribed:
            raise BusError(ErrorCode.INVALID_REQUEST, "expected a subscription to enforce a rebalance of, found none")
        self._group.membership.request_rejoin(reason)

    def group_metadata(self) -> GroupMetadata:
        """The identity of this consumer in its group. Raises `BusError` INVALID_GROUP_ID without a group."""
        return self._needed_group("group_metadata").membership.metadata()

    @property
    def _is_subscribed(self) -> bool:
        return self._group is not None and self._group.subscription is not None

    def _needed_group(self, call: str) -> GroupClient:
        if self._group is None:
            raise BusError(ErrorCode.INVALID_GROUP_ID, f"{call}: expected a consumer with a group_id, found none")
        return self._group

    # ------------------------------------------------------------ positions

    @exclusive
    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """The next record from `partition` is the one at `offset`, or the first after it."""
        if isinstance(offset, OffsetAndMetadata):
            offset = offset.offset
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise BusError(ErrorCode.INVALID_REQUEST, f"{partition}: expected an offset of 0 or more, found {offset!r}")
        check_integer("offset", offset, 0, INT_64_MAX)
        self._reader.stop_iterating()
        with self._fetcher.lock:
            assigned = self._assigned(partition)
            assigned.seek(offset)
            self._drop_from_hand(assigned)
            self._fetcher.fetch_anew(partition)

    @exclusive
    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """To the first retained record of these partitions, or of all; looked up when it is needed."""
        self._unset(partitions, "earliest")

    @exclusive
    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Behind the last record of these partitions, or of all, at the time when it is looked up: at the next poll
        or `position`."""
        self._unset(partitions, "latest")

    @exclusive
    def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """The offset of the next record that the user gets; looked up, as committed or by auto_offset_reset, if there
        is none yet. This and all other questions to brokers take `timeout_ms` at most (default_api_timeout_ms), and
        raise `BusError` when it is over."""
        deadline_ms = self._deadline_ms(timeout_ms)
        with self._fetcher.lock:
            position = self._assigned(partition).position
        if position is None:
            self._positions.find([partition], deadline_ms=deadline_ms)
            position = self._assigned(partition).position
            assert position is not None, f"{partition} has no position after it was found"
        return position

    @exclusive
    def lag(self, partition: TopicPartition, timeout_ms: int | None = None) -> int:
        """How many offsets the position is behind the high watermark that the last fetch saw; without one it is asked
        for."""
        deadline_ms = self._deadline_ms(timeout_ms)
        position = self.position(partition, timeout_ms)
        high_watermark = self._assigned(partition).high_watermark
        if high_watermark is None:
            high_watermark = self._offsets([partition], LATEST_TIMESTAMP, deadline_ms)[partition]
        return max(0, high_watermark - position)

    @exclusive
    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Polls give nothing of these until `resume`; what was fetched ahead is kept, and so is the pause, for as long
        as a rebalance leaves the partition here."""
        self._set_paused(partitions, True)

    @exclusive
    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._set_paused(partitions, False)

    def paused(self) -> set[TopicPartition]:
        return {key for key, partition in self._fetcher.assigned.items() if partition.is_paused}

    def _set_paused(self, partitions: Iterable[TopicPartition], is_paused: bool) -> None:
        self._reader.stop_iterating()
        wanted = check_topic_partitions("partitions", partitions)  # before the lock: an iterable may ask this consumer
        with self._fetcher.lock:
            for partition in wanted:
                self._assigned(partition).is_paused = is_paused

    def _unset(self, partitions: Iterable[TopicPartition], reset: str) -> None:
        self._reader.stop_iterating()
        wanted = check_topic_partitions("partitions", partitions)
        with self._fetcher.lock:
            for partition in wanted or list(self._fetcher.assigned):
                assigned = self._assigned(partition)
                assigned.unset_position(reset)
                self._drop_from_hand(assigned)
                self._fetcher.fetch_anew(partition)

    def _drop_from_hand(self, assigned: AssignedPartition) -> None:
        """The caller chose another position: what was given of it, or is to be given, counts no more."""
        self._reader.drop_from_hand(assigned)
        place = assigned.partition
        self._extra = [one for one in self._extra if (one.topic, one.partition) != (place.topic, place.partition)]

    def _assigned(self, partition: TopicPartition) -> AssignedPartition:
        self._reader.check_open()
        assigned = self._fetcher.assigned.get(check_topic_partition("partition", partition))
        if assigned is None:
            raise BusError(ErrorCode.INVALID_REQUEST, f"expected an assigned partition, found {partition}")
        return assigned

    # ------------------------------------------------------------ committed offsets

    @exclusive
    def commit(
        self,
        offsets: ToCommit | None = None,
        *,
        asynchronous: bool = False,
        callback: CommitCallback | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit for the group that everything below these offsets is done: of all positions, of a mapping (offset of
        the *next* record), or up to and with one record.

        Returns when it is durable, repeating what may yet succeed for `timeout_ms` (default_api_timeout_ms). Raises
        `BusError`; ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID and REBALANCE_IN_PROGRESS mean that others may have the
        partitions now. `asynchronous`: returns at once, is not repeated, and takes effect after all commits before it;
        `callback(offsets, error)` runs in a later call of this thread.
        """
        self._reader.check_open()
        group = self._needed_group("commit")
        is_asynchronous = check_flag("asynchronous", asynchronous)
        if callback is not None and not callable(callback):
            raise wrong_type("callback as a function of offsets and error", callback)
        deadline_ms = self._deadline_ms(timeout_ms)
        wanted = group.consumed() if offsets is None else offsets_to_commit(offsets)
        self._reader.settle({partition: committed.offset for partition, committed in wanted.items()})
        if is_asynchronous:
            if wanted:
                group.commit(wanted, callback)
            group.tell_outcomes()
            return
        if callback is not None:
            raise BusError(ErrorCode.INVALID_REQUEST, "a callback needs asynchronous=True: this call itself tells")
        if wanted:
            began_at_ms = monotonic_ms()
            try:
                group.commit_and_wait(wanted, deadline_ms)
            finally:
                self._note_waiting("commit-sync-time", began_at_ms)

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what `commit()` would commit: the positions that exist."""
        return self._needed_group("consumed").consumed()

    @exclusive
    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return what the group has committed for each partition, None if nothing. With isolation_level read_committed
        it waits for open transactions that may commit one of them. Raises `BusError`."""
        self._reader.check_open()
        wanted = check_topic_partitions("partitions", partitions)
        began_at_ms = monotonic_ms()
        try:
            return self._needed_group("committed").committed(wanted, self._deadline_ms(timeout_ms))
        finally:
            self._note_waiting("committed-time", began_at_ms)

    def _note_waiting(self, name: str, began_at_ms: float) -> None:
        now_ms = monotonic_ms()
        with self._fetcher.lock:
            self._metrics.record_waiting(name, now_ms - began_at_ms, now_ms)

    def _deadline_ms(self, timeout_ms: int | None) -> float:
        if timeout_ms is None:
            timeout_ms = self._config.default_api_timeout_ms
        return monotonic_ms() + check_milliseconds("timeout_ms", timeout_ms)

    # ------------------------------------------------------------ records

    @exclusive
    def poll(self, timeout_ms: int = 500, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, at most `max_records` (max_poll_records); empty if none came within `timeout_ms`.

        Never waits longer, however slow a broker is, callbacks apart: what it waits for, a leader, a position, a commit
        before partitions are given up, goes on, and a later poll takes it up. Raises `BusError` for what does not mend
        itself; the position stays. A broker or a topic that is not there yet is waited for.
        """
        self._reader.come_back()
        self._raise_rejected()
        with self._reader.giving():
            wanted = self._config.max_poll_records if max_records is None else max_records
            records = self._build(self._take(timeout_ms, wanted))
            return self._interceptors.on_consume(records) if self._interceptors and records else records

    @exclusive
    def poll_arrow(self, timeout_ms: int = 500, max_records: int | None = None) -> pa.Table:
        """The next records as a table, the fast path: `topic`, `partition` and the columns of the log.

        All that is there, whole batches, unless `max_records` bounds it (max_poll_records does not). Its chunks are
        the batches as they came, without a copy, past deserializers and interceptors. Otherwise as `poll`; an empty
        table if nothing came.
        """
        self._reader.come_back()
        with self._reader.giving():
            return self._tables.table_of(self._take(timeout_ms, sys.maxsize if max_records is None else max_records))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records for ever, waiting for new ones; ends after `wakeup` or `close`. The position follows each record, and
        a rebalance takes place between two of them."""
        return self

    def __next__(self) -> ConsumerRecord:
        self._home.check()
        record = self._next_intercepted() if self._interceptors else self._reader.next_record()
        if record is None:
            raise StopIteration
        return record

    def _next_intercepted(self) -> ConsumerRecord | None:
        while not self._extra:
            self._extra = self.poll(60_000, 1)[::-1]
            if not self._extra and self._reader.was_awoken:
                return None
        return self._extra.pop()

    def wakeup(self) -> None:
        """End the poll that waits, or else the next one, with what it has; end the iteration. From any thread, and
        from a signal handler. Raises nothing, in this thread or the other one."""
        self._reader.wakeup()

    @property
    def was_awoken(self) -> bool:
        """The last poll was ended by `wakeup`."""
        return self._reader.was_awoken

    @property
    def max_poll_records(self) -> int:
        return self._config.max_poll_records

    def _take(self, timeout_ms: int, max_records: int) -> Runs:
        check_integer("max_records", max_records, 1, sys.maxsize)
        return self._reader.take(check_milliseconds("timeout_ms", timeout_ms), max_records)

    def _build(self, runs: Runs) -> list[ConsumerRecord]:
        """Those that can be built, of all partitions; another one's error is for the next poll, unless there are
        none."""
        records, rejected = self._builder.build(runs)
        for error in rejected:
            self._reader.go_back(error.partition, error.offset)
        first = rejected[0] if rejected else None  # the others are found again
        if first is not None and not records:
            raise first
        self._rejected = first
        return records

    def _raise_rejected(self) -> None:
        rejected, self._rejected = self._rejected, None
        if rejected is not None:
            assigned = self._fetcher.assigned.get(rejected.partition)
            if assigned is not None and assigned.position == rejected.offset:
                raise rejected

    # ------------------------------------------------------------ questions

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The first retained offset of each."""
        return self._offsets(partitions, EARLIEST_TIMESTAMP, self._deadline_ms(timeout_ms))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The high watermark of each: one past the last record."""
        return self._offsets(partitions, LATEST_TIMESTAMP, self._deadline_ms(timeout_ms))

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return, for each partition, the first record whose timestamp is at or after the given one; None if there is
        none."""
        wanted = check_mapping(
            "timestamps_ms", timestamps_ms, check_topic_partition, _timestamp, "from TopicPartition to milliseconds"
        )
        listed = list_offsets(self._cluster, wanted, deadline_ms=self._deadline_ms(timeout_ms))
        return {
            partition: OffsetAndTimestamp(found.offset, found.timestamp_ms, found.leader_epoch)
            if found.offset >= 0
            else None
            for partition, found in listed.items()
        }

    def partitions_for(self, topic: str, timeout_ms: int | None = None) -> set[TopicPartition]:
        """The partitions of `topic`. Raises `BusError` if there is no such topic."""
        info = self._cluster.wait_topic(check_topic(topic), deadline_ms=self._deadline_ms(timeout_ms))
        return {TopicPartition(topic, number) for number in range(len(info.partitions))}

    def topics(self, timeout_ms: int | None = None) -> set[str]:
        """All topics but the bus's own."""
        deadline_ms = self._deadline_ms(timeout_ms)
        found = self._cluster.retry(lambda: self._cluster.describe(deadline_ms=deadline_ms), deadline_ms=deadline_ms)
        return {topic.name for topic in found.topics if not topic.is_internal}

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics by Kafka's names; NaN if nothing was measured lately. Rates are per second over the last
        30 to 60 seconds, times in milliseconds unless the name says otherwise. `orders-0.records-lag` is that of a
        partition. From any thread."""
        return self._metrics.snapshot(monotonic_ms())

    def topic_metrics(self) -> Mapping[str, Mapping[str, float]]:
        """Kafka's fetch metrics of each topic: topic -> name -> value."""
        return self._metrics.topic_snapshot(monotonic_ms())

    def partition_metrics(self) -> Mapping[TopicPartition, Mapping[str, float]]:
        """Kafka's fetch metrics of each assigned partition, lag and lead above all: partition -> name -> value."""
        return self._metrics.partition_snapshot(monotonic_ms())

    def _offsets(self, partitions: Iterable[TopicPartition], at: int, deadline_ms: float) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(check_topic_partitions("partitions", partitions), at)
        listed = list_offsets(self._cluster, wanted, deadline_ms=deadline_ms)
        return {partition: found.offset for partition, found in listed.items()}

    # ------------------------------------------------------------ the end

    def close(self, timeout: float | None = CLOSE_TIMEOUT_S) -> None:
        """Close the consumer: with auto-commit, commit what was consumed; leave the group, unless this is a static
        member; end. Takes `timeout` seconds at most (None: as long as it takes), callbacks apart, and raises what they
        raise. Closes interceptors and deserializers that have a `close()`. Safe to repeat.

        A call while an exception is pending (in `finally` or `except`) is like leaving `with` by that exception: the
        records of the last poll, or the record of the last step of an iteration, are not committed, and come again.
        """
        check_timeout(timeout)
        if self._home.is_here():  # in a child of a fork, the parent closes it
            self._end(timeout, is_done=sys.exc_info()[1] is None)

    @exclusive
    def _end(self, timeout: float | None, *, is_done: bool) -> None:
        """`is_done`: the caller is through with what it was given last."""
        if self._is_closing:
            return
        check_outside()
        self._is_closing = True
        self._finalizer.detach()
        try:
            if not is_done or self._extra:
                self._reader.give_back()
            if self._group is not None:
                self._group.close(monotonic_ms() + (_FOREVER_S if timeout is None else min(timeout, _FOREVER_S)) * 1000)
        finally:
            self._reader.is_closed = True
            self._fetcher.close()
            self._cluster.close()
            self._interceptors.close()
            close_all(
                {
                    "key_deserializer": self._config.key_deserializer,
                    "value_deserializer": self._config.value_deserializer,
                }
            )

    def disconnect(self) -> None:
        """End every call to a broker that is under way, with an error; none succeeds any more. From any thread; to be
        followed by `close`."""
        self._cluster.close()

    def __enter__(self: ConsumerT) -> ConsumerT:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._home.is_here():
            return
        if error is None:
            self._end(CLOSE_TIMEOUT_S, is_done=True)
            return
        try:
            self._end(CLOSE_TIMEOUT_S, is_done=False)
        except Exception:  # the error that ends the block is the one to raise
            logger.exception("closing the consumer failed")


def _no_negative(partition: TopicPartition) -> TopicPartition:
    if partition.partition < 0:
        raise wrong_value("a partition of 0 or more", partition.partition)
    return partition


def _timestamp(name: str, value: object) -> int:
    return check_integer(name, value, 0, INT_64_MAX)


def offsets_to_commit(wanted: ToCommit) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets in the form for `commit`. Raises `BusError` INVALID_REQUEST."""
    if isinstance(wanted, ConsumerRecord):
        done = OffsetAndMetadata(wanted.offset + 1, "", wanted.leader_epoch)
        return {TopicPartition(wanted.topic, wanted.partition): done}
    if not isinstance(wanted, Mapping):
        raise _not_to_commit("a mapping of partitions to offsets, or a record", wanted)
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for partition, offset in wanted.items():
        if not isinstance(partition, TopicPartition):
            raise _not_to_commit("a TopicPartition", partition)
        check_topic_partition("partition", partition)
        offsets[partition] = check_committed(f"the offset of {partition}", offset)
    return offsets


def _not_to_commit(expected: str, found: object) -> BusError:
    return BusError(ErrorCode.INVALID_REQUEST, f"to commit: expected {expected}, found {found!r}")
