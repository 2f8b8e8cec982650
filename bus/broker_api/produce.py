"""Produce: the batches of a request, each to its partition, and what became of them.

A request is taken in one step (`submit`: its batches are queued, in order) and answered in another (`answer`), so that
an adapter can take the next one meanwhile. What is costly to decode is decoded in a thread, where clients take turns.
Guards one promise: each partition of a request gets one answer, which does not depend on the others.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bus.broker_api.authorization import Access
from bus.broker_api.calls import WRITE_TOPIC, WRITE_TRANSACTIONAL_ID
from bus.broker_api.client_quotas import DrainRates
from bus.broker_api.requests import Caller, CurrentLeader, Held, Items, TakesLong, find_current_leader
from bus.broker_api.transactions import ClaimedStamp, check_stamp
from bus.cluster_metadata.configs import is_internal_topic
from bus.errors import ErrorCode, Refused
from bus.model import TIMESTAMP_MS_MAX, ProducerStamp, RecordBatch, TimestampType, TopicPartition
from bus.partition_log.appends import ACKS_ALL, AppendRules, check_acks
from bus.ports import Clock, StagingKey
from bus.runtime.blocking import BlockingCalls
from bus.runtime.cluster import Cluster
from bus.runtime.coordinators.transaction_link import CoordinatorLink
from bus.runtime.partitions.partition import Partition
from bus.runtime.partitions.partition_queue import Appended, AppendResult
from bus.runtime.replicas.in_sync_replicas import find_unreplicated
from bus.runtime.tasks import LoopShare, LoopShares, TaskScope
from bus.transactions.requests import Added, AddPartitions
from bus.transactions.state import TransactionPartition

# Which records of a refused batch are at fault, so that a producer can fail these alone and send the others again.
#
# The rules refuse a batch as a whole: they see its largest record, its span of timestamps and how many keys are
# missing. Here, and only after a refusal, the records are looked at, by whole columns.

# A batch may hold millions of records; who sends the others again is told about the next ones.
FAULTS_MAX = 1_000
# Refusals that are about some of the records of a batch.
BLAMES_RECORDS = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_RECORD})


@dataclass(frozen=True, slots=True)
class RecordFault:
    """`index`: of the record in its batch."""

    index: int
    message: str


def find_faults(
    batch: RecordBatch, refusal: Refused, rules: AppendRules, *, received_ms: int, answered_ms: int
) -> list[RecordFault]:
    """Return the faults of single records in the order of the batch, at most `FAULTS_MAX`. There are none if the batch
    is refused for another reason, or if no record of it would be taken: then the refusal says it all. The batch was
    refused at some time from `received_ms` to `answered_ms`; each record that was at fault then is returned.
    """
    if refusal.code not in BLAMES_RECORDS:
        return []
    sizes = record_sizes(batch.columns)
    is_too_large = sizes > rules.record_bytes_max
    earliest_ms = max(0, answered_ms - rules.timestamp_before_max_ms)
    latest_ms = min(received_ms + rules.timestamp_after_max_ms, TIMESTAMP_MS_MAX)
    if rules.timestamp_type is TimestampType.LOG_APPEND_TIME:
        is_mistimed = np.zeros(batch.record_count, bool)
    else:
        times = _timestamps_ms(batch)
        is_mistimed = (times < earliest_ms) | (times > latest_ms)
    is_keyless = _has_no_key(batch) if rules.is_key_required else np.zeros(batch.record_count, bool)
    indices = np.flatnonzero(is_too_large | is_mistimed | is_keyless)
    if len(indices) == batch.record_count:
        return []

    def say(index: int) -> Iterator[str]:
        if is_too_large[index]:
            yield f"expected at most {rules.record_bytes_max} bytes (max.message.bytes), found {sizes[index]}"
        if is_mistimed[index]:
            yield f"expected a timestamp from {earliest_ms} to {latest_ms} ms, found {times[index]}"
        if is_keyless[index]:
            yield "expected a key (cleanup.policy has compact), found none"

    return [RecordFault(index, "; ".join(say(index))) for index in indices[:FAULTS_MAX].tolist()]


def record_sizes(columns: pa.RecordBatch) -> Any:
    """Key + value + headers of each record, in bytes."""
    sizes = np.zeros(columns.num_rows, np.int64)
    for name in ("key", "value"):
        if name in columns.schema.names:
            sizes += _lengths(columns.column(name))
    if "headers" in columns.schema.names:
        headers = columns.column("headers")
        entries = headers.flatten()
        ends = np.cumsum(np.concatenate([[0], _lengths(entries.field("key")) + _lengths(entries.field("value"))]))
        counts = np.concatenate([[0], pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)])
        sizes += np.diff(ends[np.cumsum(counts)])
    return sizes


def _lengths(array: pa.Array) -> Any:
    """Bytes of each value; 0 where it is null."""
    return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _has_no_key(batch: RecordBatch) -> Any:
    if "key" not in batch.columns.schema.names:
        return np.ones(batch.record_count, bool)
    return batch.columns.column("key").is_null().to_numpy(zero_copy_only=False)


def _timestamps_ms(batch: RecordBatch) -> Any:
    if not batch.has_timestamps:
        return np.full(batch.record_count, batch.timestamp_min_ms, np.int64)
    return batch.columns.column("timestamp").view(pa.int64()).to_numpy() // 1000


# Of a refused batch of more, the records at fault are looked for in a thread.
_QUICK_FAULTS_RECORDS = 10_000
_MAY_BE_COMMITTED = "no commit within {} ms; the records may still be committed"
_NO_MEMORY = (
    "the broker has queued.max.request.bytes of requests waiting for a commit, or this client its share; retry later"
)

_NONE: Mapping[str, Refused] = {}

DecodedRecords = RecordBatch | Refused


class Payload(Protocol):
    """The records of a request as they came. An entry for each partition: that of `refused` if there is one, else its
    batch, or why it is none. Both methods touch nothing else, so `decode` may run in a thread."""

    size_bytes: int

    def decode_quickly(self, refused: Sequence[Refused | None], now_ms: int) -> list[DecodedRecords]:
        """Raises `TakesLong` if `decode` should be called in a thread instead."""
        ...

    def decode(self, refused: Sequence[Refused | None], now_ms: int) -> list[DecodedRecords]: ...


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of a batch in its request. `topic_id` empty, `current_leader_epoch` None: not checked."""

    partition: TopicPartition
    topic_id: str
    stamp: ClaimedStamp
    current_leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """`timeout_ms`: up to 0 stands for the broker's."""

    correlation_id: int
    acks: int
    timeout_ms: int
    destinations: Items[Destination]
    payload: Payload
    transactional_id: str = ""  # not empty: of the transaction that all batches are in
    # The commit will say what was acknowledged, so an answer need not wait until the batch is durable.
    names_last_sequences: bool = False


@dataclass(slots=True)
class _Submitted:
    """`refusal`: it was not queued. `batch` is kept until it is settled: a refusal may be about some of its records."""

    partition: TopicPartition
    refusal: Refused | None = None
    answer: asyncio.Future[AppendResult] | None = None
    batch: RecordBatch | None = None
    size_bytes: int = 0
    replicas_min: int = 1  # that have to have the commit before the answer
    faults: Sequence[RecordFault] = ()
    search: asyncio.Task[None] | None = None  # for `faults`, in a thread


@dataclass(frozen=True, slots=True)
class _Staging:
    """The transaction of a batch, and how the batch's partition gets into it (`TransactionMembership`)."""

    key: StagingKey
    addition: AddPartitions
    coordinator: CoordinatorLink

    def add_at_once(self) -> Added | None:
        return self.coordinator.add_at_once(self.addition)

    async def add(self) -> Added | Refused:
        """PRODUCER_FENCED would end the producer. A leader answers INVALID_PRODUCER_EPOCH, on which it aborts
        (KIP-588)."""
        added = await self.coordinator.add(self.addition)
        if isinstance(added, Refused) and added.code is ErrorCode.PRODUCER_FENCED:
            return Refused(ErrorCode.INVALID_PRODUCER_EPOCH, added.message)
        return added


@dataclass(frozen=True, slots=True)
class _Target:
    """The partition that a batch goes to, and the identity of its producer if that is idempotent."""

    partition: Partition
    stamp: ProducerStamp | None
    replicas_min: int = 1
    staging: _Staging | None = None  # of a batch in a transaction


@dataclass(frozen=True, slots=True)
class ProduceInFlight:
    """A request whose batches are queued or refused."""

    correlation_id: int
    timeout_ms: int
    deadline_s: float
    size_bytes: int  # as it came, or as its records are, whichever is more
    received_ms: int
    throttle_ms: int = 0  # by a quota
    submitted: list[_Submitted] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PartitionProduced:
    """`faults`: the records at fault, where a refusal is about some of them only."""

    partition: TopicPartition
    result: AppendResult
    faults: Sequence[RecordFault]
    leader: CurrentLeader | None


class ProduceApi:
    """`request_timeout_ms`: of requests that have none."""

    def __init__(
        self,
        cluster: Cluster,
        coordinator: CoordinatorLink,
        clock: Clock,
        calls: BlockingCalls,
        shares: LoopShares,
        *,
        request_timeout_ms: int,
    ) -> None:
        self._cluster = cluster
        self._coordinator = coordinator
        self._clock = clock
        self._calls = calls
        self._shares = shares
        self._request_timeout_ms = request_timeout_ms
        self._drain_rates = DrainRates()
        self._searches = TaskScope("produce")

    # ------------------------------------------------------------------ in

    async def submit(self, access: Access, request: ProduceRequest, held: Held) -> ProduceInFlight:
        """Queue the batches of all partitions; what is refused has its answer. `held`: what the request takes in
        memory, which grows by that of its records and is used until all of them are settled.

        A partition is looked for before its records are decoded, and again when they are: that may have taken a while.
        Rights are checked after the proof of leadership, which brings the metadata up to date, but reported before it:
        a caller who may not write learns nothing else of the partition.
        """
        refusal = check_acks(request.acks, is_transactional=bool(request.transactional_id))
        if refusal is not None:
            return await self._refuse(request, refusal)
        unproved = await self._cluster.prove_leadership()
        if request.transactional_id:
            refusal = await access.refusal(WRITE_TRANSACTIONAL_ID, request.transactional_id)
            if refusal is not None:
                return await self._refuse(request, refusal)
        denied = await self._find_denied(request, access)
        if unproved is not None:
            return await self._refuse(request, unproved, denied)
        now_ms = self._clock.now_ms()
        share = self._shares.begin()
        destinations, targets = await self._find_all(request, denied, share)
        is_any_refused = any(isinstance(target, Refused) for target in targets)
        epochs = {
            one.partition: one.current_leader_epoch
            for one in (destinations if is_any_refused else ())
            if one.partition.topic not in denied
        }
        if epochs and await self._cluster.catch_up(epochs):
            destinations, targets = await self._find_all(request, denied, share)
        refused = [target if isinstance(target, Refused) else None for target in targets]
        try:
            decoded = request.payload.decode_quickly(refused, now_ms)
            is_stale = share.wait_count > 0
        except TakesLong:
            decode = functools.partial(request.payload.decode, refused, now_ms)
            decoded = await self._calls.compute(decode, access.caller.connection)
            is_stale = True
            share.renew()
        in_flight = self._in_flight(request, decoded, now_ms)
        held.grow_to(in_flight.size_bytes)
        for destination, target, item in zip(destinations, targets, decoded, strict=True):
            if share.is_used_up:
                await share.wait()
                is_stale = True
            if is_stale and not isinstance(target, Refused):
                target = self._find(destination, request)
            submitted = self._append(destination, target, item, request, access.caller, held, in_flight.received_ms)
            in_flight.submitted.append(submitted)
        return in_flight

    async def refuse_for_memory(self, request: ProduceRequest) -> ProduceInFlight:
        """The request of a client that has its share of the broker's memory."""
        return await self._refuse(request, Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _NO_MEMORY))

    async def _refuse(
        self, request: ProduceRequest, refusal: Refused, denied: Mapping[str, Refused] = _NONE
    ) -> ProduceInFlight:
        """Refuse every partition: those of a topic in `denied` with its own refusal, the others with `refusal`."""
        in_flight = self._in_flight(request, (), self._clock.now_ms())
        size_bytes = request.payload.size_bytes
        refused = (
            _Submitted(one.partition, denied.get(one.partition.topic, refusal), size_bytes=size_bytes)
            for one in request.destinations
        )
        await self._shares.begin().extend(in_flight.submitted, refused)
        return in_flight

    def _in_flight(self, request: ProduceRequest, decoded: Sequence[DecodedRecords], now_ms: int) -> ProduceInFlight:
        timeout_ms = request.timeout_ms if request.timeout_ms > 0 else self._request_timeout_ms
        record_bytes = sum(item.size_bytes for item in decoded if not isinstance(item, Refused))
        return ProduceInFlight(
            request.correlation_id,
            timeout_ms,
            asyncio.get_running_loop().time() + timeout_ms / 1000,
            max(request.payload.size_bytes, record_bytes),
            now_ms,
        )

    async def _find_denied(self, request: ProduceRequest, access: Access) -> Mapping[str, Refused]:
        """Return the refusals of topics that the caller may not write to, by topic."""
        if access.allows_all:  # a frequent case that need not list the topics
            return _NONE
        topics: list[str] = []
        await self._shares.begin().extend(topics, (one.partition.topic for one in request.destinations))
        return await access.refusals(WRITE_TOPIC, topics)

    async def _find_all(
        self, request: ProduceRequest, denied: Mapping[str, Refused], share: LoopShare
    ) -> tuple[list[Destination], list[_Target | Refused]]:
        destinations: list[Destination] = []
        targets: list[_Target | Refused] = []
        for destination in request.destinations:
            if share.is_used_up:
                await share.wait()
            destinations.append(destination)
            targets.append(denied.get(destination.partition.topic) or self._find(destination, request))
        return destinations, targets

    def _find(self, destination: Destination, request: ProduceRequest) -> _Target | Refused:
        """Find the partition of a batch, or why it may not go there, as far as that is known without its records."""
        name = destination.partition
        partition = self._cluster.host.find(name, destination.topic_id)
        if isinstance(partition, Refused):
            return partition
        if is_internal_topic(name.topic):
            message = f"{name.topic} is internal, only the bus writes to it"
            return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        replicas_min = partition.min_insync_replicas if request.acks == ACKS_ALL else 1
        if replicas_min > 1:
            reason = find_unreplicated(self._cluster.host.in_sync.find(name), replicas_min)
            if reason is not None:
                return Refused(ErrorCode.NOT_ENOUGH_REPLICAS, f"{name}: {reason}")
        stamp = check_stamp(destination.stamp, request.acks)
        if stamp is None:
            return _Target(partition, None, replicas_min) if not request.transactional_id else _no_stamp(name)
        refusal = stamp if isinstance(stamp, Refused) else self._cluster.producers.check(stamp)
        if refusal is not None:
            return Refused(refusal.code, f"{name}: {refusal.message}")
        assert not isinstance(stamp, Refused)
        if not request.transactional_id:
            return partition.open_transactions.check_outside(stamp) or _Target(partition, stamp, replicas_min)
        staging = self._find_staging(name, request.transactional_id, stamp)
        return staging if isinstance(staging, Refused) else _Target(partition, stamp, staging=staging)

    def _find_staging(self, name: TopicPartition, transactional_id: str, stamp: ProducerStamp) -> _Staging | Refused:
        coordinator_partition = self._coordinator.partition_of(transactional_id)
        if isinstance(coordinator_partition, Refused):
            return coordinator_partition
        topic_id = self._cluster.state.topics[name.topic].topic_id
        return _Staging(
            StagingKey(coordinator_partition, stamp.producer_id, stamp.producer_epoch),
            AddPartitions(
                transactional_id,
                stamp.producer_id,
                stamp.producer_epoch,
                (TransactionPartition(name.topic, topic_id, name.partition),),
            ),
            self._coordinator,
        )

    def _append(
        self,
        destination: Destination,
        target: _Target | Refused,
        decoded: DecodedRecords,
        request: ProduceRequest,
        caller: Caller,
        held: Held,
        received_ms: int,
    ) -> _Submitted:
        name = destination.partition
        if isinstance(target, Refused):
            return _Submitted(name, target)
        if isinstance(decoded, Refused):
            return _Submitted(name, Refused(decoded.code, f"{name}: {decoded.message}"))
        batch = decoded if target.stamp is None else replace(decoded, producer=target.stamp)
        submitted = _Submitted(name, None, None, batch, batch.size_bytes, target.replicas_min)
        held.use()
        on_settled = functools.partial(self._settle, submitted, target.partition, held, received_ms)
        if target.staging is not None:
            submitted.answer = target.partition.open_transactions.stage(
                batch,
                target.staging.key,
                request.transactional_id,
                target.staging,
                may_be_in_memory=request.names_last_sequences,
                current_leader_epoch=destination.current_leader_epoch,
                on_settled=on_settled,
            )
            return submitted
        submitted.answer = target.partition.append(
            batch,
            acks=request.acks,
            current_leader_epoch=destination.current_leader_epoch,
            request_id=f"{caller.request_id}/{request.correlation_id}",
            on_settled=on_settled,
        )
        return submitted

    def _settle(
        self, submitted: _Submitted, partition: Partition, held: Held, received_ms: int, result: AppendResult
    ) -> None:
        """Its records are committed or dropped; from here on only the answer is kept, for as long as it is not read."""
        batch, submitted.batch = submitted.batch, None
        if batch is None or not isinstance(result, Refused) or result.code not in BLAMES_RECORDS:
            held.drop()
            return
        find = functools.partial(
            find_faults,
            batch,
            result,
            partition.append_rules,
            received_ms=received_ms,
            answered_ms=self._clock.now_ms(),
        )
        if batch.record_count <= _QUICK_FAULTS_RECORDS:
            held.drop()
            submitted.faults = find()
        else:
            submitted.search = self._searches.start(self._search(submitted, find, held), "faults")

    async def _search(self, submitted: _Submitted, find: Callable[[], list[RecordFault]], held: Held) -> None:
        try:
            submitted.faults = await self._calls.compute(find, held.client)
        finally:
            held.drop()

    # ------------------------------------------------------------------ out

    async def answer(self, in_flight: ProduceInFlight) -> tuple[list[PartitionProduced], int]:
        """Return what became of each batch, once it is known or the request's time is up; and for how many milliseconds
        the client is asked to send nothing more."""
        loop, share = asyncio.get_running_loop(), self._shares.begin()
        late = Refused(ErrorCode.REQUEST_TIMED_OUT, _MAY_BE_COMMITTED.format(in_flight.timeout_ms))
        produced: list[PartitionProduced] = []
        throttle_ms = 0
        for item in in_flight.submitted:
            if share.is_used_up:
                await share.wait()
            result: AppendResult | None = item.refusal
            if item.answer is not None:
                if not item.answer.done() and (timeout_s := in_flight.deadline_s - loop.time()) > 0:
                    await asyncio.wait([item.answer], timeout=timeout_s)
                    share.renew()
                result = item.answer.result() if item.answer.done() else late
                if item.replicas_min > 1 and isinstance(result, Appended):
                    result = await self._wait_for_replicas(item, result, in_flight.deadline_s - loop.time())
                    share.renew()
            if item.search is not None:
                await asyncio.wait([item.search])
                share.renew()
            assert result is not None, f"the batch for {item.partition} was neither queued nor refused"
            throttle_ms = max(throttle_ms, self._note(item, result, loop.time()))
            faults = item.faults if isinstance(result, Refused) else ()
            leader = find_current_leader(self._cluster.state, item.partition, result)
            produced.append(PartitionProduced(item.partition, result, faults, leader))
        return produced, throttle_ms

    async def _wait_for_replicas(self, item: _Submitted, appended: Appended, timeout_s: float) -> AppendResult:
        in_sync, name, count = self._cluster.host.in_sync, item.partition, item.replicas_min
        if await in_sync.wait(name, appended.version, count=count, timeout_s=max(0.0, timeout_s)):
            return appended
        found = in_sync.has_applied(name, appended.version)
        return Refused(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            f"{name}: the records are committed at offset {appended.base_offset}, but expected {count} replicas to "
            f"read them in time (min.insync.replicas), found {found}",
        )

    def _note(self, item: _Submitted, result: AppendResult, now_s: float) -> int:
        """Note what was drained or refused. Return for how many milliseconds the producer is to wait."""
        if isinstance(result, Appended):
            if item.size_bytes:
                self._drain_rates.add_drained(item.partition, item.size_bytes, now_s)
        elif result.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            return self._drain_rates.throttle_ms(item.partition, item.size_bytes, now_s)
        return 0


def _no_stamp(name: TopicPartition) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, f"{name}: expected a producer id with a transactional id, found none")
