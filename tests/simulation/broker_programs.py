"""Programs that use a simulated broker: producers with the real engine of the SDK, and scripted consumers, admins and
committers of offsets. What they are told goes to the invariants of the world."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from bus.client.config.clients import ProducerConfig
from bus.client.config.parsing import parse_config
from bus.client.connection.metadata_cache import LeaderHint, PartitionLeader, TopicInfo, error_of
from bus.client.connection.produce_requests import decode_produced
from bus.client.producer.batch import RECORD_OVERHEAD_BYTES, RecordFuture
from bus.client.producer.connections import Errand, InitProducer, RefreshTopics, Request, Resume
from bus.client.producer.engine import Engine
from bus.client.producer.threads import PartEncoder
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tests.simulation.broker_network import Answer, Call, Stream, UserLogin
from tests.simulation.broker_world import BrokerLife, BrokerWorld, SimulatedBroker

_CALL_S = 5.0
_CREATION_S_MAX = 60.0
# A broker that is alive knows what another one has answered.
_FOLLOWED_S_MAX = 20.0
_TICKS_AT_ONCE_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Place:
    """A partition of one topic, not of another one that had or gets its name."""

    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Sent:
    """A record that a producer was asked to send."""

    producer: str
    place: Place
    key: bytes | None
    value: bytes | None
    future: RecordFuture


async def ask(
    world: BrokerWorld,
    who: str,
    method: str,
    message: Any,
    *,
    is_repeatable: bool = True,
    late_s: float = 0.0,
    broker: SimulatedBroker | None = None,
    login: UserLogin | None = None,
) -> Answer:
    """The answer of that broker, or of any one; or a `BusError`. Cancelled, the call is given up. `late_s`: so much
    later may it arrive a second time. `login`: who asks, by the listener where users log in."""
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def take(found: Answer) -> None:
        if not answer.done():
            answer.set_result(found)

    call = Call(
        world,
        who,
        method,
        message,
        take,
        timeout_s=_CALL_S,
        is_repeatable=is_repeatable,
        late_s=late_s,
        broker=broker,
        login=login,
    )
    try:
        return await answer
    except asyncio.CancelledError:
        call.give_up()
        raise


async def ask_until_answered(world: BrokerWorld, who: str, method: str, message: Any) -> Any:
    while True:
        answer = await ask(world, who, method, message)
        if not isinstance(answer, BusError):
            return answer
        await asyncio.sleep(0.2)


class Program:
    """Does its work until the faults end; then it is asked for something more, and to look at what it did."""

    def __init__(self, world: BrokerWorld, name: str) -> None:
        self.world = world
        self.name = name
        self._is_running = False
        world.programs.append(self)

    async def run(self) -> None:
        self._is_running = True
        while not self.world.is_healed:
            await self.do_something()
        self._is_running = False

    async def do_something(self) -> None: ...

    def why_unsettled(self) -> str | None:
        """None once nothing is expected of it any more."""
        return f"{self.name} waits for an answer" if self._is_running else None

    def go_on(self) -> None:
        """The faults are over: ask for something more."""

    async def check_end(self) -> None: ...


# ---------------------------------------------------------------- producers


class Producer(Program):
    """One producer of the SDK for one topic, with its real engine and the bytes that it sends."""

    def __init__(
        self, world: BrokerWorld, name: str, topic: TopicInfo, *, is_keyed: bool = False, **configs: Any
    ) -> None:
        super().__init__(world, name)
        self._is_keyed = is_keyed
        self._number = 0
        self.config = parse_config(
            ProducerConfig, {"linger_ms": 2, "batch_size": 300, "request_timeout_ms": 4_000, **configs}
        )
        self.sent: list[Sent] = []
        self.is_sending = True
        self._last_ones: list[Sent] = []
        self._info = topic
        self._encoder = PartEncoder(self.config)
        self._tick_at, self._ticked_at, self._ticks_at_once = 0.0, -1.0, 0
        self.engine = Engine(
            self,
            self.config,
            clock=world.monotonic_ms,
            backoff_ms=lambda failures: min(1_000.0, 20.0 * 2 ** min(failures, 10)) * world.random.uniform(0.8, 1.2),
            open_stream=self._open_stream,
            run_errand=self._run_errand,
            wake=lambda: world.at(0.0, self._tick),
        )
        world.at(0.0, self._tick)

    def _tick(self) -> None:
        world = self.world
        self._ticks_at_once = self._ticks_at_once + 1 if world.now == self._ticked_at else 0
        self._ticked_at = world.now
        assert self._ticks_at_once < _TICKS_AT_ONCE_MAX, f"ticks without end at {world.now}"
        next_ms = self._tick_at = self.engine.tick()
        if next_ms < math.inf:
            delay_s = max(0.0, next_ms / 1000 - world.now)
            world.at(delay_s, lambda: self._tick() if next_ms == self._tick_at else None)

    async def send_bursts(self, count: int) -> None:
        world = self.world
        for _ in range(count):
            self.send(world.random.randrange(len(self._info.partitions)))
            if world.random.randrange(4) == 0:
                await asyncio.sleep(world.random.choice((0.0, 0.01, 0.1, world.random.uniform(0, 2.0))))
        self.is_sending = False

    def go_on(self) -> None:
        for partition in range(len(self._info.partitions)):
            self._last_ones.append(self.send(partition))

    async def check_end(self) -> None:
        for sent in self._last_ones:
            error = sent.future.exception(0)
            assert error is None, f"EverythingEnds: {sent.value!r} to {sent.place}, after the last fault: {error}"

    def send(self, partition: int) -> Sent:
        world = self.world
        self._number += 1
        value: bytes | None = b"%s:%0*d" % (self.name.encode(), world.random.choice((1, 4, 4, 200)), self._number)
        key = b"k%d" % world.random.randrange(6) if self._is_keyed or world.random.randrange(2) else None
        size_bytes = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
        try:
            with self.engine.lock:
                record = (value, key, None, partition, world.now_ms(), size_bytes)
                count = len(self._info.partitions)
                future = self.engine.add(self._info.name, record, count, deadline_ms=world.monotonic_ms())
        finally:
            self.engine.announce()
        assert future is not None
        sent = Sent(self.name, Place(self._info.name, self._info.topic_id, partition), key, value, future)
        self.sent.append(sent)
        future.add_done_callback(lambda _: self._tell(sent))
        return sent

    def _tell(self, sent: Sent) -> None:
        error = sent.future.exception(0)
        if error is None:
            found = sent.future.result(0)
            self.world.note(self.name, f"has {sent.value!r:.40} in {sent.place} at {found.offset}")
            self.world.tell("on_acknowledged", sent, found.offset)
        else:
            self.world.note(self.name, f"fails to send {sent.value!r:.40} to {sent.place}", error)
            self.world.tell("on_not_sent", sent, error)

    def why_unsettled(self) -> str | None:
        if self.is_sending:
            return f"{self.name} is still sending"
        waiting = [sent for sent in self.sent if not sent.future.done()]
        return f"{self.name} waits for {len(waiting)} records, first {waiting[0]}" if waiting else None

    # ------------------------------------------------------------ metadata

    def topic(self, name: str) -> TopicInfo | None:
        return self._info

    def leader_address(self, info: TopicInfo, partition: int) -> str | None:
        leader_id = info.partitions[partition].leader_id
        return self.world.brokers[leader_id].config.listen if leader_id >= 0 else None

    def is_stale(self, info: TopicInfo) -> bool:
        return False

    def take_hint(self, topic: str, partition: int, hint: LeaderHint) -> bool:
        leaders = self._info.partitions
        if hint.leader_epoch <= leaders[partition].leader_epoch:
            return False
        leader = PartitionLeader(partition, hint.leader_id, hint.leader_epoch, 0, "")
        self._info = replace(self._info, partitions=(*leaders[:partition], leader, *leaders[partition + 1 :]))
        return True

    # ------------------------------------------------------------ calls and streams

    def _open_stream(self, address: str) -> _ProduceStream:
        return _ProduceStream(self.world, self, self._encoder, address)

    def _run_errand(self, errand: Errand) -> None:
        def call(
            method: str,
            message: Any,
            take: Callable[[Any], None],
            fail: Callable[[BusError], None],
            broker: SimulatedBroker | None = None,
        ) -> None:
            def on_answer(answer: Answer) -> None:
                if isinstance(answer, BusError):
                    fail(answer)
                else:
                    take(answer)

            Call(self.world, self.name, method, message, on_answer, timeout_s=_CALL_S, broker=broker)

        engine = self.engine
        match errand:
            case RefreshTopics(topics):
                call(
                    "Metadata",
                    pb.MetadataRequest(topics=topics),
                    self._refreshed,
                    lambda error: engine.on_refreshed(dict.fromkeys(topics, error)),
                )
            case InitProducer(producer_id, epoch):
                request = pb.InitProducerIdRequest(
                    name=self.config.name or "", producer_id=producer_id, producer_epoch=epoch or 0
                )
                call("InitProducerId", request, self._identified, engine.on_no_identity)
            case Resume(queue, _, topic_id, producer_id, epoch):
                partition = pb.ResumeProducerPartition(topic=queue.topic, partition=queue.partition, topic_id=topic_id)
                resume = pb.ResumeProducerRequest(producer_id=producer_id, producer_epoch=epoch, partitions=[partition])
                call(
                    "ResumeProducer",
                    resume,
                    lambda answer: self._resumed(errand, answer),
                    lambda error: engine.on_not_resumed(errand, error),
                    leader_of(self.world, self._info, queue.partition),
                )

    def _refreshed(self, answer: Any) -> None:
        (topic,) = answer.topics
        if topic.error_code:
            self.engine.on_refreshed({topic.name: error_of(topic.error_code, topic.error_message)})
            return
        self._info = topic_info(topic)
        self.engine.on_refreshed({topic.name: None})

    def _identified(self, answer: Any) -> None:
        if answer.error_code:
            self.engine.on_no_identity(error_of(answer.error_code, answer.error_message))
        else:
            self.engine.on_identity(answer.producer_id, answer.producer_epoch)

    def _resumed(self, errand: Resume, answer: Any) -> None:
        (found,) = answer.partitions
        if found.error_code:
            self.engine.on_not_resumed(errand, error_of(found.error_code, found.error_message))
        else:
            self.engine.on_resumed(
                errand, last_epoch=found.last_epoch, last_sequence=found.last_sequence, version=found.version
            )


class _ProduceStream:
    """An `engine.Stream`."""

    def __init__(self, world: BrokerWorld, producer: Producer, encoder: PartEncoder, address: str) -> None:
        self.address = address
        self._world = world
        self._producer = producer
        self._encoder = encoder
        broker = world.broker_at(int(address.rpartition(":")[2]))
        self._stream = Stream(world, producer.name, "Produce", self._answer, self._end, broker=broker)

    def send(self, request: Request) -> None:
        self._world.note(self._producer.name, f"-> Produce {request.correlation_id}", _parts(request))
        self._stream.send(self._encoder.encode(request))

    def cut(self, reason: str, *, is_late: bool = False) -> None:
        self._stream.cut()

    def finish(self) -> None:
        self._stream.finish()

    def join(self, timeout: float | None) -> None: ...

    def _answer(self, answer: Any) -> None:
        self._world.note(self._producer.name, "<- Produce", answer)
        self._producer.engine.on_answer(
            self, answer.correlation_id, answer.throttle_time_ms, decode_produced(answer.partitions)
        )

    def _end(self, error: BusError) -> None:
        self._producer.engine.on_end(self, error)


def _parts(request: Request) -> str:
    return ", ".join(f"{part.queue.topic}-{part.queue.partition} {part.stamp}" for part in request.parts)


def leader_of(world: BrokerWorld, topic: TopicInfo, partition: int) -> SimulatedBroker:
    """Return the leader according to the program's metadata."""
    leader_id = topic.partitions[partition].leader_id
    return world.brokers[leader_id] if leader_id >= 0 else world.any_broker()


def topic_info(topic: Any) -> TopicInfo:
    leaders = tuple(
        PartitionLeader(found.partition, found.leader_id, found.leader_epoch, found.error_code, found.error_message)
        for found in sorted(topic.partitions, key=lambda found: found.partition)
    )
    return TopicInfo(topic.name, topic.topic_id, leaders, 0.0)


# ---------------------------------------------------------------- consumers


@dataclass(frozen=True, slots=True)
class Told:
    """The answer to a fetch of one partition. `asked_at`: when it was sent. `reader`: who asked, if followers may have
    answered; None if only a leader may."""

    life: BrokerLife
    place: Place
    fetch_offset: int
    asked_at: float
    code: ErrorCode
    message: str
    high_watermark: int
    log_start: int
    records: list[tuple[int, bytes | None, bytes | None]]  # offset, key, value
    reader: str | None = None


class Consumer(Program):
    """Reads a topic from its beginning, and begins again now and then. With a `rack` it asks any broker as well as the
    leader, and says which versions it was told of."""

    def __init__(self, world: BrokerWorld, name: str, topic: TopicInfo, *, rack: str = "") -> None:
        super().__init__(world, name)
        self.rack = rack
        self._seen: dict[int, int] = {}  # by partition: the newest version that it was told of
        self.topic = topic
        self.positions = dict.fromkeys(range(len(topic.partitions)), 0)
        self._is_stale = False  # what it knows of leaders
        self._lost: set[int] = set()  # partitions whose log start is to be asked for
        self._correlation_id = 0

    async def do_something(self) -> None:
        world = self.world
        await self._refresh()
        if world.chance(30):
            self._lost.add(world.random.randrange(len(self.positions)))
        if world.chance(4):
            await self._ask_offset(world.random.randrange(len(self.positions)), LATEST_TIMESTAMP)
        for partition in sorted(self._lost):
            await self._begin_again(partition)
        await self._fetch()
        await asyncio.sleep(world.random.choice((0.0, 0.01, world.random.uniform(0, 1.0))))

    async def check_end(self) -> None:
        self._is_stale = True
        await self._refresh()
        for partition in self.positions:
            await self._begin_again(partition)
        for _ in range(20):
            await self._fetch()

    async def _refresh(self) -> None:
        """Look up the leaders again once something has failed."""
        if self._is_stale and len(self.world.brokers) > 1:
            answer = await ask(self.world, self.name, "Metadata", pb.MetadataRequest(topics=[self.topic.name]))
            if not isinstance(answer, BusError) and not answer.topics[0].error_code:
                self.topic, self._is_stale = topic_info(answer.topics[0]), False

    async def _begin_again(self, partition: int) -> None:
        offset = await self._ask_offset(partition, EARLIEST_TIMESTAMP)
        if offset is not None:
            self.positions[partition] = offset
            self._lost.discard(partition)

    async def _ask_offset(self, partition: int, timestamp_ms: int) -> int | None:
        """The answer is judged where it is given."""
        asked = pb.ListOffsetsPartition(topic=self.topic.name, partition=partition, timestamp_ms=timestamp_ms)
        request, leader = pb.ListOffsetsRequest(partitions=[asked]), leader_of(self.world, self.topic, partition)
        answer = await ask(self.world, self.name, "ListOffsets", request, broker=leader)
        if isinstance(answer, BusError) or answer.partitions[0].error_code:
            self._is_stale = True
            return None
        offset: int = answer.partitions[0].offset
        return offset

    async def _fetch(self) -> None:
        asked: dict[SimulatedBroker, list[int]] = {}
        for number in self.positions:
            leader = leader_of(self.world, self.topic, number)
            is_led = not self.rack or self.world.random.randrange(3) == 0
            asked.setdefault(leader if is_led else self.world.any_broker(), []).append(number)
        for broker, numbers in asked.items():
            await self._fetch_from(broker, numbers)

    async def _fetch_from(self, broker: SimulatedBroker, numbers: list[int]) -> None:
        world = self.world
        self._correlation_id += 1
        is_plain = world.random.randrange(2) == 0
        request = pb.FetchRequest(
            correlation_id=self._correlation_id,
            max_wait_ms=world.random.choice((0, 100, 1_000)),
            min_bytes=world.random.choice((0, 1, 10_000)),
            max_bytes=world.random.choice((1, 500, 1 << 20)),
            partitions=[
                pb.FetchPartition(
                    topic=self.topic.name,
                    partition=number,
                    fetch_offset=self.positions[number],
                    seen_version=self._seen.get(number) if self.rack else None,
                )
                for number in numbers
            ],
            rack_id=self.rack,
            columns=["offset", "key", "value"],
            format=pb.RECORD_FORMAT_RECORDS if is_plain else pb.RECORD_FORMAT_ARROW,
        )
        asked_at, asked, life = world.now, dict(self.positions), broker.life
        answer = await ask(world, self.name, "FetchOnce", request, broker=broker)
        if isinstance(answer, BusError) or life is None:
            self._is_stale = True
            return
        for share in answer.partitions:
            offset = asked[share.partition]
            told = Told(
                life,
                Place(self.topic.name, self.topic.topic_id, share.partition),
                offset,
                asked_at,
                ErrorCode(share.error_code),
                share.error_message,
                share.high_watermark,
                share.log_start_offset,
                [found for found in records_of(share) if found[0] >= offset],
                self.name if self.rack else None,
            )
            world.tell("on_fetched", told)
            self._seen[share.partition] = max(share.version, self._seen.get(share.partition, -1))
            self._move(told, share)

    def _move(self, told: Told, share: Any) -> None:
        number = told.place.partition
        self._is_stale = self._is_stale or told.code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)
        if told.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._lost.add(number)
        if self.positions[number] == told.fetch_offset and told.code is ErrorCode.NONE:
            ends = [batch.next_offset for batch in share.batches]
            if told.records or ends:
                self.positions[number] = max([*ends, *(offset + 1 for offset, _, _ in told.records)])


def records_of(share: Any) -> list[tuple[int, bytes | None, bytes | None]]:
    found = [
        (
            record.offset,
            record.key if record.HasField("key") else None,
            record.value if record.HasField("value") else None,
        )
        for record in share.records.records
    ]
    for batch in share.batches:
        columns: dict[str, list[Any]] = {}
        if batch.arrow:
            columns = pa.ipc.open_stream(batch.arrow).read_all().to_pydict()
        offsets = columns.get("offset") or range(batch.base_offset, batch.base_offset + batch.record_count)
        nothing = [None] * batch.record_count
        found += zip(offsets, columns.get("key", nothing), columns.get("value", nothing), strict=True)
    return found


# ---------------------------------------------------------------- admins


async def create_topic(world: BrokerWorld, name: str, partitions: int, configs: dict[str, str]) -> TopicInfo:
    """Asked for until it is there. A broker that dies at each fiftieth call of its store would come to that once in an
    hour, and none of its starts shows more than the ones before: so it is spared after some time."""
    request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=name, partitions=partitions, configs=configs)])
    spared_at = world.now + _CREATION_S_MAX
    while True:
        world.is_spared = world.now > spared_at
        answer = await ask(world, "admin", "CreateTopics", request, is_repeatable=False)
        if not isinstance(answer, BusError):
            code = ErrorCode(answer.topics[0].error_code)
            assert code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS) or error_of(code, "").retriable, answer
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                found = await ask_until_answered(world, "admin", "Metadata", pb.MetadataRequest(topics=[name]))
                if not found.topics[0].error_code:
                    world.is_spared = False
                    return topic_info(found.topics[0])
        await asyncio.sleep(0.3)


class Admin(Program):
    """Creates topics, widens, configures and deletes them, and creates some of them again. A name whose fate an answer
    did not tell is used no more."""

    def __init__(self, world: BrokerWorld, name: str) -> None:
        super().__init__(world, name)
        self._numbers = itertools.count(1)
        self._topics: dict[str, AdminTopic] = {}  # by name: those whose fate is known
        self._deleted: dict[str, None] = {}

    async def do_something(self) -> None:
        world = self.world
        await asyncio.sleep(world.random.choice((0.01, world.random.uniform(0, 2.0))))
        if not self._topics or (len(self._topics) < 3 and world.random.randrange(2)):
            await self._create()
        else:
            topic = world.random.choice(list(self._topics.values()))
            await world.random.choice((self._delete, self._widen, self._configure, self._configure))(topic)
        await self._look()

    async def _create(self) -> None:
        name, count = self._find_name(), self.world.random.randrange(1, 3)
        answer = await self._change(
            "CreateTopics", pb.CreateTopicsRequest(topics=[pb.NewTopic(name=name, partitions=count)])
        )
        if answer is not None:
            self._topics[name] = AdminTopic(name, answer.topics[0].topic_id, count)

    def _find_name(self) -> str:
        """A new one, or that of a topic that was deleted."""
        if self._deleted and self.world.random.randrange(2):
            return self._deleted.popitem()[0]
        return f"{self.name}x{next(self._numbers)}"

    async def _delete(self, topic: AdminTopic) -> None:
        del self._topics[topic.name]
        if await self._change("DeleteTopics", pb.DeleteTopicsRequest(topics=[topic.name])) is not None:
            self._deleted[topic.name] = None

    async def _widen(self, topic: AdminTopic) -> None:
        count = topic.partitions_asked + 1
        asked = pb.NewPartitions(name=topic.name, partitions=count)
        topic.partitions_asked = count
        if await self._change("CreatePartitions", pb.CreatePartitionsRequest(topics=[asked])) is not None:
            topic.partitions = count

    async def _configure(self, topic: AdminTopic) -> None:
        value = str(self.world.random.randrange(1, 100_000))
        resource = pb.ConfigResource(type=pb.RESOURCE_TYPE_TOPIC, name=topic.name)
        operation = pb.AlterConfigOp(name="retention.bytes", value=value)
        topic.configs_asked.append(value)
        request = pb.AlterConfigsRequest(resources=[pb.AlterConfigsResource(resource=resource, operations=[operation])])
        if await self._change("AlterConfigs", request) is not None:
            topic.configs_asked[:] = [value]

    async def _change(self, method: str, request: Any) -> Any:
        """The answer if it says that the change was made."""
        answer = await ask(self.world, self.name, method, request, is_repeatable=False)
        if isinstance(answer, BusError):
            return None
        (item,) = answer.resources if method == "AlterConfigs" else answer.topics
        code = ErrorCode(item.error_code)
        assert code is ErrorCode.NONE or error_of(code, "").retriable, f"{method} was refused: {item}"
        return None if item.error_code else answer

    async def _look(self) -> None:
        """Check that every later answer contains what was answered; another broker than the one that answered has to
        follow soon."""
        until = self.world.now + (_FOLLOWED_S_MAX if len(self.world.brokers) > 1 else 0.0)
        while True:
            try:
                return await self._look_once()
            except AssertionError:
                if self.world.now >= until:
                    raise
            await asyncio.sleep(0.2)

    async def _look_once(self) -> None:
        answer = await ask(self.world, self.name, "Metadata", pb.MetadataRequest())
        if isinstance(answer, BusError):
            return
        found = {topic.name: topic for topic in answer.topics}
        for topic in self._topics.values():
            assert topic.name in found, f"AcknowledgedIsSeen: {topic} is not there"
            seen = found[topic.name]
            assert seen.topic_id == topic.topic_id, f"AcknowledgedIsSeen: expected {topic}, found {seen}"
            count = len(seen.partitions)
            assert topic.partitions <= count <= topic.partitions_asked, f"AcknowledgedIsSeen: {topic}, found {seen}"
        for name in self._deleted:
            assert name not in found, f"AcknowledgedIsSeen: {name} was deleted and is there"
        for topic in list(self._topics.values()):
            await self._look_at_configs(topic)

    async def _look_at_configs(self, topic: AdminTopic) -> None:
        resource = pb.ConfigResource(type=pb.RESOURCE_TYPE_TOPIC, name=topic.name)
        request = pb.DescribeConfigsRequest(resources=[resource], keys=["retention.bytes"])
        answer = await ask(self.world, self.name, "DescribeConfigs", request)
        if not isinstance(answer, BusError):
            assert not answer.resources[0].error_code, f"AcknowledgedIsSeen: {topic}, found {answer}"
            (entry,) = answer.resources[0].entries
            assert entry.value in topic.configs_asked, f"AcknowledgedIsSeen: {topic}, found {entry.value}"

    async def check_end(self) -> None:
        await self._look()


@dataclass
class AdminTopic:
    """`partitions` and the first of `configs_asked` were answered, the others asked for."""

    name: str
    topic_id: str
    partitions: int
    partitions_asked: int = 0
    configs_asked: list[str] = field(default_factory=lambda: ["-1"])

    def __post_init__(self) -> None:
        self.partitions_asked = self.partitions


class Maintainer(Program):
    """Has a topic rolled, compacted and cleaned by hand, and, if `may_delete`, records deleted."""

    def __init__(self, world: BrokerWorld, name: str, topic: TopicInfo, *, may_delete: bool) -> None:
        super().__init__(world, name)
        self._topic = topic
        self._may_delete = may_delete

    async def do_something(self) -> None:
        world = self.world
        await asyncio.sleep(world.random.uniform(0, 6.0))
        if self._may_delete and world.random.randrange(2):
            await self._delete_records()
        else:
            action = world.random.choice(pb.MaintenanceAction.values())
            await ask(world, self.name, "MaintainLog", pb.MaintainLogRequest(action=action, topic=self._topic.name))

    async def _delete_records(self) -> None:
        world = self.world
        asked = pb.DeleteRecordsPartition(
            topic=self._topic.name,
            partition=world.random.randrange(len(self._topic.partitions)),
            offset=world.random.choice((-1, world.random.randrange(40))),
        )
        await ask(world, self.name, "DeleteRecords", pb.DeleteRecordsRequest(partitions=[asked]))


class Committer(Program):
    """Commits growing offsets for a group without members, and asks for them."""

    def __init__(self, world: BrokerWorld, name: str, topic: TopicInfo) -> None:
        super().__init__(world, name)
        self._topic = topic
        self._last_sent = self._last_committed = -1
        self._coordinator: SimulatedBroker | None = None

    async def do_something(self) -> None:
        world = self.world
        await asyncio.sleep(world.random.choice((0.01, world.random.uniform(0, 2.0))))
        if world.random.randrange(3):
            await self._commit()
        else:
            await self._look()

    async def _commit(self) -> None:
        self._last_sent = offset = self._last_sent + 1
        self.world.tell("on_offset_sent", self.name, offset)
        asked = pb.OffsetCommitPartition(topic=self._topic.name, partition=0, offset=offset, leader_epoch=-1)
        request = pb.OffsetCommitRequest(group_id=self.name, generation=-1, partitions=[asked])
        broker = await self._find()
        answer = await ask(self.world, self.name, "OffsetCommit", request, is_repeatable=False, broker=broker)
        if not isinstance(answer, BusError) and not answer.partitions[0].error_code:
            self._last_committed = offset
            self.world.tell("on_offset_committed", self.name, offset)
        else:
            self._coordinator = None

    async def _find(self) -> SimulatedBroker | None:
        """The group's coordinator, as far as it is known."""
        if self._coordinator is None and len(self.world.brokers) > 1:
            answer = await ask(self.world, self.name, "FindCoordinator", pb.FindCoordinatorRequest(key=self.name))
            if not isinstance(answer, BusError) and not answer.error_code:
                self._coordinator = self.world.broker_at(answer.coordinator.port)
        return self._coordinator

    async def _look(self) -> None:
        topics = pb.TopicPartitions(topic=self._topic.name, partitions=[0])
        request = pb.OffsetFetchRequest(groups=[pb.OffsetFetchGroup(group_id=self.name, topics=[topics])])
        answer = await ask(self.world, self.name, "OffsetFetch", request, broker=await self._find())
        if isinstance(answer, BusError) or answer.groups[0].error_code:
            self._coordinator = None

    async def check_end(self) -> None:
        await self._look()
        before = self._last_committed
        while self._last_committed == before:
            await self._commit()
            await asyncio.sleep(0.1)
        await self._look()


def by_place(producers: list[Producer]) -> dict[Place, list[Sent]]:
    found: dict[Place, list[Sent]] = defaultdict(list)
    for producer in producers:
        for sent in producer.sent:
            found[sent.place].append(sent)
    return found
