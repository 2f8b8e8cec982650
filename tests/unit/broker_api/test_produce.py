from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from bus.broker_api.produce import Destination, PartitionProduced, ProduceApi, ProduceRequest
from bus.broker_api.requests import Caller, RequestMemory, TakesLong
from bus.broker_api.transactions import ClaimedStamp
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, Leadership, Topic
from bus.errors import ErrorCode, Refused
from bus.model import ProducerStamp, RecordBatch, TopicPartition
from bus.partition_log.appends import ACKS_ALL
from bus.ports import StagingKey
from bus.records.arrow_batches import check_records
from bus.runtime.partitions.open_transactions import TransactionMembership
from bus.runtime.partitions.partition_queue import Appended
from bus.runtime.tasks import LoopShares
from bus.transactions.requests import Added, AddPartitions
from bus.transactions.state import TransactionPartition
from tests.support.api_bench import open_access
from tests.support.proofs import DENIED, UNPROVED, DeniedTopics, proved, unproved

CALLER = Caller("connection", "/127.0.0.1", "ab12")
UNKNOWN = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "gone")
BATCH = check_records(pa.RecordBatch.from_arrays([pa.array([b"value"])], names=["value"]), default_timestamp_ms=1)
ALL_RIGHT = Appended(7, 3, -1, 0)


class FakePartition:
    """Settled when the test says so."""

    def __init__(self) -> None:
        self.appended: list[dict[str, Any]] = []
        self.min_insync_replicas = 1
        self.refused_outside: Refused | None = None  # what is in no transaction
        self.staged: list[dict[str, Any]] = []
        self.open_transactions = SimpleNamespace(check_outside=lambda stamp: self.refused_outside, stage=self._stage)

    def _stage(
        self, batch: RecordBatch, key: StagingKey, transactional_id: str, membership: TransactionMembership, **what: Any
    ) -> asyncio.Future[Any]:
        self.staged.append({"batch": batch, "key": key, "id": transactional_id, "membership": membership, **what})
        return asyncio.get_running_loop().create_future()

    def append(self, batch: RecordBatch, **what: Any) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.appended.append({"batch": batch, "answer": answer, **what})
        return answer

    def settle(self, result: Any) -> None:
        call = self.appended.pop(0)
        call["on_settled"](result)
        call["answer"].set_result(result)


class Records:
    """A payload of one record for each partition."""

    size_bytes = 100

    def __init__(self, *, takes_long: bool = False, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._takes_long = takes_long
        self._meanwhile = meanwhile

    def decode_quickly(self, refused: Sequence[Refused | None], now_ms: int) -> list[RecordBatch | Refused]:
        if self._takes_long:
            raise TakesLong
        return self.decode(refused, now_ms)

    def decode(self, refused: Sequence[Refused | None], now_ms: int) -> list[RecordBatch | Refused]:
        self._meanwhile()
        return [one or BATCH for one in refused]


class FakeReplicas:
    """`found`: those in sync; `applied`: how many have each version."""

    def __init__(self) -> None:
        self.found: tuple[int, ...] = (0,)
        self.applied = 1

    def find(self, name: TopicPartition) -> tuple[int, ...]:
        return self.found

    def has_applied(self, name: TopicPartition, version: int) -> int:
        return self.applied

    async def wait(self, name: TopicPartition, version: int, *, count: int, timeout_s: float) -> bool:
        return self.applied >= count


class FakeCoordinator:
    """Adds as it is told."""

    def __init__(self) -> None:
        self.at_once: Added | None = None
        self.added: Added | Refused = Added()
        self.additions: list[AddPartitions] = []

    def partition_of(self, transactional_id: str) -> int:
        return 4

    def add_at_once(self, addition: AddPartitions) -> Added | None:
        self.additions.append(addition)
        return self.at_once

    async def add(self, addition: AddPartitions) -> Added | Refused:
        self.additions.append(addition)
        return self.added


class Bench:
    def __init__(self, *topics: str, prove: Callable[..., Awaitable[Refused | None]] = proved) -> None:
        self.partitions: dict[TopicPartition, Any] = {TopicPartition(topic, 0): FakePartition() for topic in topics}
        self.in_sync = FakeReplicas()
        host = SimpleNamespace(find=self._find, in_sync=self.in_sync)
        self.opened_meanwhile: dict[TopicPartition, Any] = {}
        self.caught_up: list[Mapping[TopicPartition, int | None]] = []
        led = {topic: Topic(topic, f"id of {topic}", (Leadership(0, 0),)) for topic in topics}
        cluster: Any = SimpleNamespace(
            host=host,
            state=replace(EMPTY_CLUSTER, topics=led),
            prove_leadership=prove,
            producers=SimpleNamespace(check=lambda stamp: None),
            catch_up=self._catch_up,
        )
        clock: Any = SimpleNamespace(now_ms=lambda: 1)
        calls: Any = SimpleNamespace(compute=self._compute)
        self.memory = RequestMemory(1 << 20)
        self.coordinator = FakeCoordinator()
        coordinator: Any = self.coordinator
        self.api = ProduceApi(cluster, coordinator, clock, calls, LoopShares(), request_timeout_ms=30_000)

    def _find(self, name: TopicPartition, topic_id: str) -> Any:
        return self.partitions.get(name, UNKNOWN)

    async def _catch_up(self, asked: Mapping[TopicPartition, int | None]) -> bool:
        self.caught_up.append(asked)
        self.partitions |= self.opened_meanwhile
        return bool(self.opened_meanwhile)

    async def _compute(self, decode: Callable[[], Any], client: object) -> Any:
        return decode()

    def of(self, topic: str) -> FakePartition:
        found: FakePartition = self.partitions[TopicPartition(topic, 0)]
        return found

    @property
    def held_bytes(self) -> int:
        return (1 << 20) - self.memory.bytes_left("another")

    async def submit(self, *topics: str, records: Records | None = None, **changes: Any) -> Any:
        stamp = changes.pop("stamp", ClaimedStamp(None, 0, 0))
        access = changes.pop("access", open_access("ProduceOnce", CALLER))
        wanted = [Destination(TopicPartition(topic, 0), "", stamp, None) for topic in topics]
        asked = {"correlation_id": 9, "acks": ACKS_ALL, "timeout_ms": 0, **changes}
        request = ProduceRequest(destinations=wanted, payload=records or Records(), **asked)
        held = self.memory.hold(CALLER.connection, request.payload.size_bytes)
        try:
            return await self.api.submit(access, request, held)
        finally:
            held.drop()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def codes_of(produced: Sequence[PartitionProduced]) -> list[ErrorCode | None]:
    return [one.result.code if isinstance(one.result, Refused) else None for one in produced]


def test_each_partition_has_its_answer_whatever_the_others_have() -> None:
    async def test() -> None:
        bench = Bench("t", "__consumer_offsets")
        in_flight = await bench.submit("none", "t", "__consumer_offsets")
        assert [call["request_id"] for call in bench.of("t").appended] == ["ab12/9"]
        bench.of("t").settle(ALL_RIGHT)
        produced, throttle_ms = await bench.api.answer(in_flight)
        assert codes_of(produced) == [UNKNOWN.code, None, ErrorCode.INVALID_TOPIC_EXCEPTION]
        assert throttle_ms == 0

    run(test)


def test_partition_that_is_just_being_opened_is_waited_for_and_nothing_else_is() -> None:
    async def test() -> None:
        bench = Bench("t")
        bench.opened_meanwhile[TopicPartition("late", 0)] = FakePartition()
        in_flight = await bench.submit("t", "late", "none")
        bench.of("t").settle(ALL_RIGHT)
        bench.of("late").settle(ALL_RIGHT)
        produced, _ = await bench.api.answer(in_flight)
        assert codes_of(produced) == [None, None, UNKNOWN.code]
        await bench.submit("t")
        assert bench.caught_up == [dict.fromkeys(TopicPartition(name, 0) for name in ("t", "late", "none"))]

    run(test)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
        ({"stamp": ClaimedStamp(-1, 0, 0)}, ErrorCode.INVALID_REQUEST),
        ({"stamp": ClaimedStamp(7, 0, 0), "acks": 0}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_no_request_may_say_is_refused_before_anything_is_queued(changes: dict[str, Any], code: ErrorCode) -> None:
    async def test() -> None:
        bench = Bench("t")
        produced, _ = await bench.api.answer(await bench.submit("t", "t", **changes))
        assert codes_of(produced) == [code, code]
        assert bench.of("t").appended == []
        assert bench.held_bytes == 0

    run(test)


def test_nothing_is_queued_where_leadership_cannot_be_proved() -> None:
    async def test() -> None:
        bench = Bench("t", prove=unproved)
        produced, _ = await bench.api.answer(await bench.submit("t"))
        assert codes_of(produced) == [UNPROVED.code]
        assert bench.of("t").appended == []

    run(test)


@pytest.mark.parametrize("prove", [proved, unproved])
def test_who_may_not_write_is_told_that_and_nothing_of_leadership(prove: Callable[..., Any]) -> None:
    async def test() -> None:
        bench = Bench("t", prove=prove)
        produced, _ = await bench.api.answer(await bench.submit("t", "u", access=DeniedTopics("t", "u")))
        assert codes_of(produced) == [DENIED.code, DENIED.code]
        produced, _ = await bench.api.answer(await bench.submit("t", "none", access=DeniedTopics("t")))
        assert codes_of(produced) == [DENIED.code, UNKNOWN.code if prove is proved else UNPROVED.code]
        assert bench.of("t").appended == []

    run(test)


def test_too_few_replicas_in_sync_refuse_a_batch_before_it_is_written_and_only_with_acks_all() -> None:
    async def test() -> None:
        bench = Bench("t")
        bench.of("t").min_insync_replicas = 2
        produced, _ = await bench.api.answer(await bench.submit("t"))
        assert codes_of(produced) == [ErrorCode.NOT_ENOUGH_REPLICAS]
        assert bench.of("t").appended == []
        in_flight = await bench.submit("t", acks=1)
        bench.of("t").settle(ALL_RIGHT)
        assert codes_of((await bench.api.answer(in_flight))[0]) == [None]

    run(test)


@pytest.mark.parametrize(("applied", "code"), [(1, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND), (2, None)])
def test_commit_that_too_few_replicas_have_read_is_said_to_be_one(applied: int, code: ErrorCode | None) -> None:
    async def test() -> None:
        bench = Bench("t")
        bench.of("t").min_insync_replicas = 2
        bench.in_sync.found, bench.in_sync.applied = (0, 1), applied
        in_flight = await bench.submit("t")
        bench.of("t").settle(ALL_RIGHT)
        produced, _ = await bench.api.answer(in_flight)
        assert codes_of(produced) == [code]

    run(test)


def test_batch_carries_the_stamp_of_its_producer() -> None:
    async def test() -> None:
        bench = Bench("t")
        await bench.submit("t", stamp=ClaimedStamp(7, 2, 5))
        assert bench.of("t").appended[0]["batch"].producer == ProducerStamp(7, 2, 5)

    run(test)


def test_batch_outside_of_the_transaction_of_its_producer_is_not_queued() -> None:
    async def test() -> None:
        bench = Bench("t")
        bench.of("t").refused_outside = Refused(ErrorCode.INVALID_TXN_STATE, "of a transaction")
        produced, _ = await bench.api.answer(await bench.submit("t", stamp=ClaimedStamp(7, 2, 5)))
        assert codes_of(produced) == [ErrorCode.INVALID_TXN_STATE]
        assert bench.of("t").appended == []

    run(test)


def test_batch_of_a_transaction_is_staged_and_gets_its_partition_added_as_the_coordinator_says() -> None:
    async def test() -> None:
        bench = Bench("t")
        await bench.submit(
            "t", stamp=ClaimedStamp(7, 2, 5), transactional_id="payments", names_last_sequences=True, timeout_ms=1
        )
        (staged,) = bench.of("t").staged
        assert (staged["key"], staged["id"]) == (StagingKey(4, 7, 2), "payments")
        assert staged["batch"].producer == ProducerStamp(7, 2, 5)
        assert staged["may_be_in_memory"]
        membership, coordinator = staged["membership"], bench.coordinator
        coordinator.at_once = Added(may_be_one_phase=True)
        assert membership.add_at_once() == Added(may_be_one_phase=True)
        assert await membership.add() == Added()
        coordinator.added = Refused(ErrorCode.PRODUCER_FENCED, "another instance came")
        assert await membership.add() == Refused(ErrorCode.INVALID_PRODUCER_EPOCH, "another instance came")
        addition = AddPartitions("payments", 7, 2, (TransactionPartition("t", "id of t", 0),))
        assert coordinator.additions == [addition] * 3
        assert bench.of("t").appended == []

    run(test)


def test_partition_that_goes_while_records_are_decoded_is_not_written_to() -> None:
    async def test() -> None:
        bench = Bench("t")
        partition = bench.of("t")
        records = Records(takes_long=True, meanwhile=bench.partitions.clear)
        produced, _ = await bench.api.answer(await bench.submit("t", records=records))
        assert codes_of(produced) == [UNKNOWN.code]
        assert partition.appended == []

    run(test)


def test_request_counts_until_its_records_are_settled_though_its_time_is_up() -> None:
    async def test() -> None:
        bench = Bench("t")
        in_flight = await bench.submit("t", timeout_ms=1)
        produced, _ = await bench.api.answer(in_flight)
        assert codes_of(produced) == [ErrorCode.REQUEST_TIMED_OUT]
        assert bench.held_bytes > 0
        bench.of("t").settle(ALL_RIGHT)
        assert bench.held_bytes == 0

    run(test)


def test_full_queue_asks_for_a_pause() -> None:
    async def test() -> None:
        bench = Bench("t")
        in_flight = await bench.submit("t")
        bench.of("t").settle(Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "full"))
        produced, throttle_ms = await bench.api.answer(in_flight)
        assert codes_of(produced) == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        assert throttle_ms > 0

    run(test)
