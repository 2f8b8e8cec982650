"""What a client knows of the cluster: its brokers, the leaders of its topics, one gRPC channel for each address.

Guards one promise: a leader once known is never replaced by an older one (leader epochs of a topic id only grow here).
Makes calls and translates their failures into `BusError`; whether to try again is the caller's decision, but for
metadata, which every caller needs. Safe to use from several threads; no lock is held during a call.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import grpc

from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb

# Kafka's socket.connection.setup.timeout.ms: TCP and the first frames of HTTP/2, on a machine that may be busy.
_CONNECT_TIMEOUT_MS = 10_000
_SERVICE = pb.DESCRIPTOR.services_by_name["Bus"]


class ConnectionConfig(Protocol):
    """The settings that all clients share."""

    @property
    def client_id(self) -> str: ...
    @property
    def request_timeout_ms(self) -> int: ...
    @property
    def retry_backoff_ms(self) -> int: ...
    @property
    def retry_backoff_max_ms(self) -> int: ...
    @property
    def reconnect_backoff_ms(self) -> int: ...
    @property
    def reconnect_backoff_max_ms(self) -> int: ...
    @property
    def metadata_max_age_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    partition: int
    leader_id: int
    leader_epoch: int
    error_code: int
    error_message: str


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """Invariant: partitions[i].partition == i."""

    name: str
    topic_id: str
    partitions: tuple[PartitionLeader, ...]
    fetched_at: float  # time.monotonic()


class Backoff:
    """Exponential, with a fifth of jitter either way: clients that failed together do not come back together."""

    def __init__(self, base_ms: int, max_ms: int) -> None:
        self._base_ms = base_ms
        self._max_ms = max(base_ms, max_ms)

    def seconds(self, attempt: int) -> float:
        """`attempt` 0 is the first repetition."""
        bounded: float = min(self._max_ms, self._base_ms * 2 ** min(attempt, 30))
        return bounded * random.uniform(0.8, 1.2) / 1000


def translate_rpc_error(error: grpc.RpcError, *, address: str, what: str) -> BusError:
    """A gRPC status as the error of the bus that tells a user what to do."""
    status, details = error.code(), error.details() or "no details"
    match status:
        case grpc.StatusCode.UNAVAILABLE:
            return _unreachable(address, details)
        case grpc.StatusCode.CANCELLED:
            return BusError(ErrorCode.NETWORK_EXCEPTION, f"{what} at {address} was cancelled: {details}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return BusError(ErrorCode.REQUEST_TIMED_OUT, f"{what} at {address}: no answer in time")
        case grpc.StatusCode.INVALID_ARGUMENT:
            return BusError(ErrorCode.INVALID_REQUEST, f"{what} at {address}: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return BusError(ErrorCode.UNSUPPORTED_VERSION, f"{what} is not known to the server at {address}: {details}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return BusError(ErrorCode.RECORD_LIST_TOO_LARGE, f"{what} at {address}: {details}")
        case _:
            return BusError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{what} at {address}: {status.name}: {details}")


def _unreachable(address: str, details: str) -> BusError:
    if "refused" in details.lower():
        return BusError(
            ErrorCode.NETWORK_EXCEPTION,
            f"no broker listens at {address} (connection refused); start one with: bus serve --listen {address}",
        )
    return BusError(ErrorCode.NETWORK_EXCEPTION, f"the broker at {address} cannot be reached: {details}")


def error_of(code: int, message: str) -> BusError:
    """The error of one item of a response. A code that this client does not know is UNKNOWN_SERVER_ERROR."""
    try:
        return BusError(ErrorCode(code), message)
    except ValueError:
        return BusError(ErrorCode.UNKNOWN_SERVER_ERROR, f"error code {code}: {message}")


class Cluster:
    """`bootstrap` addresses find the brokers; then the addresses that brokers advertise are used as well."""

    def __init__(self, bootstrap: Sequence[str], config: ConnectionConfig) -> None:
        self._bootstrap = tuple(bootstrap)
        self._config = config
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._calls: dict[tuple[str, str], Callable[..., Any]] = {}
        self._brokers: dict[int, str] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._last_good: str | None = None
        self._controller_id = -1
        self._is_closed = False
        self.headers = (("client-id", config.client_id),)
        self.backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)

    @property
    def was_reached(self) -> bool:
        """True after the first answer of any broker."""
        return self._last_good is not None

    @property
    def controller_address(self) -> str | None:
        """None while it is not known; then any broker will do."""
        return self._brokers.get(self._controller_id)

    # ------------------------------------------------------------ metadata

    def cached_topic(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def is_stale(self, info: TopicInfo) -> bool:
        return time.monotonic() - info.fetched_at >= self._config.metadata_max_age_ms / 1000

    def leader_address(self, info: TopicInfo, partition: int) -> str | None:
        """None while no leader is known, or its address is not."""
        return self._brokers.get(info.partitions[partition].leader_id)

    def wait_topic(self, name: str, *, timeout_s: float) -> TopicInfo:
        """The topic from the cache, else from a broker, trying again while that may help.

        Raises `BusError` at once if the topic does not exist, or if no broker was ever reached.
        """
        info = self._topics.get(name)
        if info is not None and not self.is_stale(info):
            return info
        deadline = time.monotonic() + timeout_s
        attempt = 0
        while True:
            try:
                return self.refresh([name])[name]
            except BusError as error:
                delay = self.backoff.seconds(attempt)
                if not self.may_retry(error) or time.monotonic() + delay >= deadline:
                    raise
            attempt += 1
            time.sleep(delay)

    def wait_partition(self, name: str, partition: int, *, timeout_s: float) -> TopicInfo:
        """As `wait_topic`, and the topic has this partition: what the cache does not know yet is asked for once."""
        info = self.wait_topic(name, timeout_s=timeout_s)
        if partition >= len(info.partitions):
            info = self.refresh([name])[name]
        if not 0 <= partition < len(info.partitions):
            raise BusError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"expected a partition of {name!r} from 0 to {len(info.partitions) - 1}, found {partition}",
            )
        return info

    def forget(self, names: Iterable[str]) -> None:
        """Ask again before these topics are used the next time. Leader epochs are remembered."""
        with self._lock:
            for name in names:
                info = self._topics.get(name)
                if info is not None:
                    self._topics[name] = replace(info, fetched_at=-math.inf)

    def may_retry(self, error: BusError) -> bool:
        """A broker's word that a topic does not exist is final; so is a first contact that finds no broker at all."""
        is_final = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return error.retriable and not is_final and self.was_reached and not self._is_closed

    def refresh(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Ask a broker for these topics. Raises the error of the first one that has one; the others are cached."""
        wanted = list(names)
        response = self.call("Metadata", pb.MetadataRequest(topics=wanted))
        failure: BusError | None = None
        found: dict[str, TopicInfo] = {}
        with self._lock:
            self._take_brokers(response)
            for topic in response.topics:
                if topic.error_code:
                    self._topics.pop(topic.name, None)
                    failure = failure or error_of(topic.error_code, topic.error_message)
                else:
                    found[topic.name] = self._topics[topic.name] = self._newest(_topic_info(topic))
        missing = [name for name in wanted if name not in found]
        if missing and failure is None:
            failure = BusError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {missing[0]!r} does not exist")
        if failure is not None:
            raise failure
        return found

    def describe(self, names: Iterable[str] = ()) -> Any:
        """The broker's whole `MetadataResponse`, unfiltered; no names: all topics."""
        response = self.call("Metadata", pb.MetadataRequest(topics=list(names)))
        with self._lock:
            self._take_brokers(response)
        return response

    def _take_brokers(self, response: Any) -> None:
        self._brokers = {broker.broker_id: f"{broker.host}:{broker.port}" for broker in response.brokers}
        self._controller_id = response.controller_id

    def _newest(self, info: TopicInfo) -> TopicInfo:
        known = self._topics.get(info.name)
        if known is None or known.topic_id != info.topic_id or len(known.partitions) > len(info.partitions):
            return info
        partitions = list(info.partitions)
        for position, leader in enumerate(known.partitions):
            if leader.leader_epoch > partitions[position].leader_epoch:
                partitions[position] = leader
        return replace(info, partitions=tuple(partitions))

    # ------------------------------------------------------------ calls

    def call(self, method: str, request: Any, *, address: str | None = None, timeout_s: float | None = None) -> Any:
        """One unary call to `address`, or to whichever broker can be reached. Raises `BusError`."""
        timeout = self._config.request_timeout_ms / 1000 if timeout_s is None else timeout_s
        error: BusError | None = None
        for candidate in [address] if address is not None else self.candidates():
            try:
                response = self._unary(candidate, method)(request, timeout=timeout, metadata=self.headers)
            except grpc.RpcError as failure:
                error = translate_rpc_error(failure, address=candidate, what=method)
                if error.code is not ErrorCode.NETWORK_EXCEPTION:
                    raise error from None
            else:
                self._last_good = candidate
                return response
        assert error is not None, "a cluster has at least one address"
        raise error from None

    def start_call(
        self, method: str, request: Any, *, address: str, timeout_s: float, on_done: Callable[[Any], None]
    ) -> Callable[[], object]:
        """As `call`, without waiting: `on_done` gets the response or a `BusError`, on a thread of gRPC's. Returns what
        cancels the call. Raises `BusError` if this client is closed."""
        call: Any = self._unary(address, method)
        future = call.future(request, timeout=timeout_s, metadata=self.headers)

        def settle(done: Any) -> None:
            try:
                answer = done.result()
            except grpc.RpcError as failure:
                answer = translate_rpc_error(failure, address=address, what=method)
            except grpc.FutureCancelledError:
                answer = BusError(ErrorCode.NETWORK_EXCEPTION, f"{method} at {address} was cancelled")
            else:
                self._last_good = address
            on_done(answer)

        future.add_done_callback(settle)
        return future.cancel  # type: ignore[no-any-return]

    def candidates(self) -> list[str]:
        """Every address that may be a broker's, the likeliest first."""
        preferred = [self._last_good] if self._last_good is not None else []
        return list(dict.fromkeys([*preferred, *self._brokers.values(), *self._bootstrap]))

    def _unary(self, address: str, method: str) -> Callable[..., Any]:
        call = self._calls.get((address, method))
        if call is None:
            descriptor = _SERVICE.methods_by_name[method]
            response_class = getattr(pb, descriptor.output_type.name)
            call = self.channel(address).unary_unary(
                f"/{_SERVICE.full_name}/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=response_class.FromString,
            )
            self._calls[address, method] = call
        return call

    def open_stream(
        self, address: str, method: str, requests: Iterable[Any], serializer: Callable[[Any], bytes] | None
    ) -> Any:
        """A bidirectional call; `serializer` None: the requests are serialized already."""
        response_class = getattr(pb, _SERVICE.methods_by_name[method].output_type.name)
        stream = self.channel(address).stream_stream(
            f"/{_SERVICE.full_name}/{method}",
            request_serializer=serializer,
            response_deserializer=response_class.FromString,
        )
        return stream(iter(requests), metadata=self.headers)

    def open_answers(self, method: str, request: Any, *, address: str) -> Generator[Any, None, None]:
        """A call with many answers, made at once and without a deadline. The generator raises `BusError`; closing it,
        or letting go of it, ends the call."""
        descriptor = _SERVICE.methods_by_name[method]
        stream = self.channel(address).unary_stream(
            f"/{_SERVICE.full_name}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(pb, descriptor.output_type.name).FromString,
        )(request, metadata=self.headers)
        return _answers(stream, address=address, method=method)

    def channel(self, address: str) -> grpc.Channel:
        with self._lock:
            if self._is_closed:
                raise BusError(ErrorCode.INVALID_REQUEST, "this client is closed")
            if address not in self._channels:
                self._channels[address] = grpc.insecure_channel(address, options=self._channel_options())
            return self._channels[address]

    def _channel_options(self) -> list[tuple[str, Any]]:
        return [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.initial_reconnect_backoff_ms", self._config.reconnect_backoff_ms),
            # By its name a pause, in fact how long one attempt to connect may take.
            ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
            ("grpc.max_reconnect_backoff_ms", self._config.reconnect_backoff_max_ms),
            # Each client its own connection: two producers of one process must not share one flow-control window.
            ("grpc.use_local_subchannel_pool", 1),
        ]

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            channels, self._channels = self._channels, {}
            self._calls.clear()
        for channel in channels.values():
            channel.close()


def _answers(stream: Any, *, address: str, method: str) -> Generator[Any, None, None]:
    try:
        yield from stream
    except grpc.RpcError as failure:
        raise translate_rpc_error(failure, address=address, what=method) from None
    finally:
        stream.cancel()


def _topic_info(topic: Any) -> TopicInfo:
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition)
    return TopicInfo(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            PartitionLeader(
                partition=partition.partition,
                leader_id=partition.leader_id,
                leader_epoch=partition.leader_epoch,
                error_code=partition.error_code,
                error_message=partition.error_message,
            )
            for partition in partitions
        ),
        fetched_at=time.monotonic(),
    )
