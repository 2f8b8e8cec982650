"""The calls of a client to the brokers of a cluster, and its questions about topics and leaders, whose answers
`metadata` keeps.

Guards one promise: a call that was given a deadline ends by it, however many attempts, pauses and addresses it takes.
`retry` repeats what may succeed later; it waits for a broker that is not there yet as it does for one that went away.
Safe to use from several threads; no lock is held during a call.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from bus.client.config.clients import ConnectionConfig
from bus.client.config.security import security_of
from bus.client.connection.broker_watch import BrokerWatch, PatientWait
from bus.client.connection.connections import (
    SERVICE,
    UNKNOWN_CONTRACT,
    BrokerContract,
    Connection,
    Connections,
    Leaving,
    NotConnected,
    SessionExpired,
    UnusableConnection,
    closed_client,
    decode_contract,
    new_question,
)
from bus.client.connection.logins import Headers, Logins
from bus.client.connection.metadata_cache import MetadataCache, OldMetadata, TopicInfo, address_of, error_of
from bus.client.connection.processes import Home, check_may_connect, keep_in_children
from bus.client.connection.retrying import SILENT_AFTER_MS, Backoff, first_answer, monotonic_ms, portions, retry
from bus.client.first_contact import is_broker_needed
from bus.client_texts import CLIENT_ID_HEADER
from bus.errors import BusError, ErrorCode, did_you_mean, near_names, show_range
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.platform.reentry import Flag, check_outside, logger_of

logger = logger_of(__name__)

RETRIES_MAX = 2**31 - 1
# An attempt gets this at least, however late it comes: a healthy broker answers within it.
_ATTEMPT_MS_MIN = 500
# After these another broker may answer at the address, of another release.
_OF_ANOTHER_BROKER = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNSUPPORTED_VERSION)
_OF_NO_BROKER = (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNKNOWN_SERVER_ERROR)
_NO_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.value
_NAMES_MS_MAX = 1_000  # a call that waits for a new topic waits this long for similar names to suggest

ResultT = TypeVar("ResultT")
Acquaintance = tuple[Headers, BrokerContract]  # the headers of a call, and the contract that the broker knows


@dataclass(frozen=True, slots=True, eq=False)
class _StartedCall:
    """A call that no thread waits for."""

    method: str
    request: Any
    address: str
    timeout_ms: float
    deadline_ms: float
    patience_ms: float | None
    on_done: Callable[[Any], None]

    def left_ms(self) -> float:
        return _left_ms(self.deadline_ms, self.timeout_ms)

    def failed(self, why: str) -> BusError:
        return BusError(ErrorCode.NETWORK_EXCEPTION, f"{self.method} at {self.address} {why}")


class Cluster:
    """`bootstrap` addresses find the brokers; then the addresses that brokers advertise are used as well."""

    def __init__(self, bootstrap: Sequence[str], config: ConnectionConfig) -> None:
        self._bootstrap = tuple(bootstrap)
        self._config = config
        check_may_connect()
        self.home = Home("client")
        keep_in_children(self)
        security = security_of(config)
        self._connections = Connections(config, security)
        client_headers = ((CLIENT_ID_HEADER, config.client_id),)
        self._logins = Logins(security.login, client_headers, self._connections, config.request_timeout_ms)
        self.watch = BrokerWatch(ask=self._who_is_fenced, give_up=self._give_up_fenced, ask_on=self._ask_on)
        self._contracts: dict[str, BrokerContract] = {}  # the contracts of brokers that have answered, by address
        self._turn = 0  # selects the broker that is asked about others
        self._last_good: str | None = None
        self.metadata = MetadataCache(config.metadata_max_age_ms)
        self._reported: set[str] = set()  # topics that were created because this client named them
        self._closed = Flag()
        self.is_patient = not is_broker_needed()  # waits for what was never there
        self.was_reached = False  # True after the first answer of any broker
        self._logins.use_watch(self.watch)
        self.backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._reconnect_backoff = Backoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms)

    # ------------------------------------------------------------ trying again

    def may_retry(self, error: BusError) -> bool:
        """True if the same call may succeed later. A broker's answer that a topic does not exist, or that it cannot
        read its records, is final here."""
        is_final = error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.CORRUPT_MESSAGE)
        is_hopeless = not self.is_patient or isinstance(error, UnusableConnection)
        is_lost = not self.was_reached and is_hopeless
        return error.retriable and not is_final and not is_lost and not self._closed.is_set()

    def retry(
        self,
        ask: Callable[[], ResultT],
        *,
        deadline_ms: float,
        retries: int = RETRIES_MAX,
        may_retry: Callable[[BusError], bool] | None = None,
    ) -> ResultT:
        """Return what `ask` returns; call it again with growing pauses while its error may pass (`may_retry`, or this
        cluster's) and until `deadline_ms`. Raises the last error. `ask` bounds its own calls."""
        may_retry = may_retry or self.may_retry
        return retry(
            ask,
            may_retry=lambda attempt, error: attempt < retries and may_retry(error),
            pause=lambda attempt, error: self._pause(attempt, error, deadline_ms),
        )

    def _pause(self, attempt: int, error: BusError, deadline_ms: float) -> bool:
        """Wait before the next attempt; False if no time is left for one, or this client is closed."""
        is_apart = error.code is ErrorCode.NETWORK_EXCEPTION
        backoff_ms = (self._reconnect_backoff if is_apart else self.backoff).ms(attempt)
        left_ms = deadline_ms - monotonic_ms()
        is_closed = left_ms <= 0 or self._closed.wait(min(backoff_ms, left_ms) / 1000)
        return not is_closed and backoff_ms < left_ms

    # ------------------------------------------------------------ metadata

    def wait_topic(self, name: str, *, deadline_ms: float, may_create: bool = False) -> TopicInfo:
        """The topic from the cache, else from a broker, trying again while that may help.

        Raises `BusError`, at once if the topic does not exist; with `may_create` the broker is asked to create it, and
        it is waited for.
        """
        info = self.metadata.topic(name)
        if info is not None and not self.metadata.is_stale(info):
            return info
        return self.retry(
            lambda: self.refresh([name], deadline_ms=deadline_ms, may_create=may_create)[name],
            deadline_ms=deadline_ms,
            may_retry=self._may_come_to_be if may_create else None,
        )

    def _may_come_to_be(self, error: BusError) -> bool:
        is_missing = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return (is_missing and self.is_patient and not self._closed.is_set()) or self.may_retry(error)

    def wait_partition(self, name: str, partition: int, *, deadline_ms: float) -> TopicInfo:
        """Wait for the topic like `wait_topic`, and for this partition: if the cache does not know it, a broker's
        answer decides."""
        info = self.wait_topic(name, deadline_ms=deadline_ms)
        return self.with_partition(info, partition, deadline_ms=deadline_ms)

    def with_partition(self, info: TopicInfo, partition: int, *, deadline_ms: float) -> TopicInfo:
        """`info`, or a newer one, if the topic has this partition. Raises `BusError` UNKNOWN_TOPIC_OR_PARTITION."""
        if partition >= len(info.partitions):
            info = self.retry(
                lambda: self.refresh([info.name], deadline_ms=deadline_ms)[info.name], deadline_ms=deadline_ms
            )
        if not 0 <= partition < len(info.partitions):
            raise BusError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"expected a partition of {info.name!r} {show_range(0, len(info.partitions) - 1)}, found {partition}",
            )
        return info

    def refresh(
        self, names: Iterable[str], *, deadline_ms: float | None = None, may_create: bool = False
    ) -> dict[str, TopicInfo]:
        """Ask a broker for these topics. Raises the error of the first one that has one; the others are cached."""
        wanted = list(names)
        response = self._ask_metadata(wanted, deadline_ms=deadline_ms, may_create=may_create)
        found, failure = self.metadata.take(response)
        self.watch.note_live(self.metadata.addresses())
        missing = [name for name in wanted if name not in found]
        if missing and failure is None:
            failure = BusError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {missing[0]!r} does not exist")
        if failure is not None:
            raise failure
        return found

    def describe(self, names: Iterable[str] = (), *, deadline_ms: float | None = None, may_create: bool = False) -> Any:
        """The broker's whole `MetadataResponse`, unfiltered; no names: all topics."""
        response = self._ask_metadata(names, deadline_ms=deadline_ms, may_create=may_create)
        self.metadata.take_brokers(response)
        self.watch.note_live(self.metadata.addresses())
        return response

    def _ask_metadata(self, names: Iterable[str], *, deadline_ms: float | None, may_create: bool) -> Any:
        """One response; with names for several requests, the last one with the topics of all. What is not there is
        found out before it is created, so that a misspelt name does not become a topic without a word."""
        topics: list[Any] = []
        created: list[str] = []
        for portion in portions(names):
            response = self._ask_portion(portion, deadline_ms=deadline_ms)
            missing = [topic.name for topic in response.topics if topic.error_code == _NO_TOPIC] if may_create else []
            if missing:
                topics.extend(topic for topic in response.topics if topic.error_code != _NO_TOPIC)
                response = self._ask_portion(missing, deadline_ms=deadline_ms, may_create=True)
                created += [topic.name for topic in response.topics if not topic.error_code]
            response.topics.MergeFrom(topics)
            topics = list(response.topics)
        if created:
            self._report_created(created)
        return response

    def _ask_portion(self, names: Sequence[str], *, deadline_ms: float | None, may_create: bool = False) -> Any:
        request = pb.MetadataRequest(topics=names, allow_auto_topic_creation=may_create)
        return self.call(
            "Metadata", request, deadline_ms=deadline_ms, is_reading=True, check=self.metadata.check_not_older
        )

    def _report_created(self, names: Sequence[str]) -> None:
        known: list[str] = []
        with suppress(BusError):  # the names are a help, no more
            answer = self._ask_portion([], deadline_ms=monotonic_ms() + _NAMES_MS_MAX)
            known = [topic.name for topic in answer.topics if topic.name not in names]
        for name in names:
            if name in self._reported:  # another thread has asked for it at the same time
                continue
            self._reported.add(name)
            hint = did_you_mean(map(repr, near_names(name, known)))
            logger.warning("topic %r did not exist and was created, as auto.create.topics.enable allows%s", name, hint)

    # ------------------------------------------------------------ calls

    def call(
        self,
        method: str,
        request: Any,
        *,
        address: str | None = None,
        timeout_ms: float | None = None,
        deadline_ms: float | None = None,
        is_repeatable: bool = True,
        is_reading: bool = False,
        check: Callable[[Any], None] = lambda response: None,
    ) -> Any:
        """One unary call to `address`, or to whichever broker can be reached. Raises `BusError`.

        It has `timeout_ms`, or request.timeout.ms, and ends by `deadline_ms`, if that leaves it half a second. What is
        not `is_repeatable` goes to the next address only if it was not sent to this one. What `is_reading` may be asked
        twice at a time: of the next one too when this one has not answered for a second. An answer for which `check`
        raises `BusError` is none.
        """
        self.home.check()
        check_outside()
        addresses = [address] if address is not None else self.candidates()

        def limit_ms() -> float:
            own_ms: float = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
            return own_ms if deadline_ms is None else min(own_ms, max(deadline_ms - monotonic_ms(), _ATTEMPT_MS_MIN))

        def may_ask_next(failure: BusError) -> bool:
            has_time = deadline_ms is None or monotonic_ms() < deadline_ms
            return has_time and self._may_ask_next(failure, is_repeatable=is_repeatable)

        if is_reading and len(addresses) > 1:
            return first_answer(
                addresses,
                lambda candidate, on_done: self.start_call(
                    method,
                    request,
                    address=candidate,
                    timeout_ms=limit_ms(),
                    on_done=lambda answer: on_done(_checked(answer, check)),
                ),
                may_ask_next=may_ask_next,
            )
        for candidate in addresses:
            try:
                response = self._call_one(candidate, method, request, limit_ms())
                check(response)
                return response
            except BusError as failure:
                if candidate == addresses[-1] or not may_ask_next(failure):
                    raise
        raise AssertionError("expected at least one address, found none")

    def knock(self, address: str, patience_ms: float) -> None:
        """Raises `NotConnected` if the broker does not answer now: what must not be sent twice is better not sent to
        one that hangs. Asks nothing if it was that broker which answered last."""
        if self._last_good == address:
            return
        try:
            self._call_one(address, "DescribeCluster", pb.DescribeClusterRequest(), patience_ms)
        except BusError as failure:
            if not self._may_ask_next(failure, is_repeatable=True):
                raise
            raise NotConnected(failure.code, failure.message) from None

    def _may_ask_next(self, failure: BusError, *, is_repeatable: bool) -> bool:
        if isinstance(failure, (NotConnected, OldMetadata)):
            return True
        if failure.code is ErrorCode.UNSUPPORTED_VERSION:  # nothing was done; another broker may be a newer one
            return True
        return is_repeatable and failure.code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT)

    def _call_one(self, address: str, method: str, request: Any, timeout_ms: float) -> Any:
        try:
            return self._call_once(address, method, request, timeout_ms)
        except SessionExpired:
            return self._call_once(address, method, request, timeout_ms)

    def _call_once(self, address: str, method: str, request: Any, timeout_ms: float) -> Any:
        self.home.check()
        check_outside()
        deadline_ms = monotonic_ms() + timeout_ms
        headers, contract = self.introduce(address, timeout_ms)
        contract.check(method, request, address)
        return self._ask(address, method, request, headers, _left_ms(deadline_ms, timeout_ms))

    def _ask(self, address: str, method: str, request: Any, headers: Headers, timeout_ms: float) -> Any:
        def ask(connection: Connection) -> Any:
            call = connection.call(method)
            try:
                if timeout_ms <= self._config.request_timeout_ms:
                    return call(request, timeout=timeout_ms / 1000, metadata=headers)
                future = call.future(request, timeout=timeout_ms / 1000, metadata=headers)
                return self._wait_patiently(connection, future, method)
            except grpc.RpcError as failure:
                raise self.failure(connection, failure, method, headers) from None

        self.watch.note_sent(address)
        try:
            _, response = self._connections.start(address, ask)
        except BaseException:
            self._note_failure(address)
            raise
        self._note_answer(address)
        return response

    def _wait_patiently(self, connection: Connection, future: Any, method: str) -> Any:
        wait = PatientWait(self.watch, connection, self._config.request_timeout_ms, future)
        try:
            return future.result()
        except grpc.FutureCancelledError:
            cancelled = BusError(ErrorCode.NETWORK_EXCEPTION, f"{method} at {connection.address} was cancelled")
            raise wait.error(method) or cancelled from None
        finally:
            wait.end()
            future.cancel()  # in case something else has ended the wait

    def known(self, address: str) -> Acquaintance | None:
        """Return what `introduce` does, without waiting; None if it has to ask."""
        contract = self._contracts.get(address)
        headers = self._logins.ready_headers(address)
        return None if contract is None or headers is None else (headers, contract)

    def introduce(self, address: str, timeout_ms: float | None = None) -> Acquaintance:
        """Return what a call there shows, and what the broker knows. Asks the broker where that is not known yet,
        within the time-out, and request.timeout.ms; raises `BusError` as a call does."""
        timeout_ms = min(self._config.request_timeout_ms, math.inf if timeout_ms is None else timeout_ms)
        deadline_ms = monotonic_ms() + timeout_ms
        headers = self._logins.headers(address, timeout_ms)
        contract = self._contracts.get(address)
        if contract is None:
            left_ms = _left_ms(deadline_ms, timeout_ms)
            contract = self._contracts[address] = self._ask_contract(address, headers, left_ms)
        return headers, contract

    def _ask_contract(self, address: str, headers: Headers, timeout_ms: float) -> BrokerContract:
        """Ask a broker for its contract. Once a broker of the cluster was reached, a server that does not answer as one
        is none: another program has the address of a broker that is gone. So it counts as one that cannot be reached,
        until the metadata name another leader."""
        was_reached = self.was_reached
        try:
            answer = self._ask(address, "ApiVersions", new_question(), headers, timeout_ms)
            if answer.error_code:
                raise error_of(answer.error_code, f"the broker at {address}: {answer.error_message}")
            return decode_contract(answer, address)
        except BusError as failure:
            is_without_contract = failure.code is ErrorCode.UNSUPPORTED_VERSION  # an early broker, or another program
            if is_without_contract and not (was_reached and self._is_no_broker(address, headers, timeout_ms)):
                return UNKNOWN_CONTRACT
            if was_reached and failure.code in _OF_NO_BROKER:
                message = f"expected a broker at {address}, found a server that does not answer as one"
                raise NotConnected(ErrorCode.NETWORK_EXCEPTION, f"{message}: {failure.message}") from None
            raise

    def _is_no_broker(self, address: str, headers: Headers, timeout_ms: float) -> bool:
        """Ask a question that brokers of every release answer."""
        try:
            self._ask(address, "DescribeCluster", pb.DescribeClusterRequest(), headers, timeout_ms)
        except BusError as failure:
            if failure.code in _OF_NO_BROKER:
                return True
            raise
        return False

    def start_call(
        self,
        method: str,
        request: Any,
        *,
        address: str,
        timeout_ms: float,
        on_done: Callable[[Any], None],
        patience_ms: float | None = None,
    ) -> Callable[[], object]:
        """Call like `call`, without waiting: `on_done` gets the response or a `BusError`, on a thread of gRPC's.
        Returns a function that cancels the call. Raises `BusError` if this client is closed. `patience_ms`: for a call
        whose time-out is far longer than an answer takes to travel. If nothing has arrived on its connection for this
        long, nor for as long after a probe, it ends with REQUEST_TIMED_OUT."""
        self.home.check()
        deadline_ms = monotonic_ms() + timeout_ms
        call = _StartedCall(method, request, address, timeout_ms, deadline_ms, patience_ms, on_done)
        known = self.known(address)
        if known is None:
            return self._start_in_thread(call)
        return self._start(call, known)

    def _start(self, call: _StartedCall, known: Acquaintance, *, is_again: bool = False) -> Callable[[], object]:
        """`is_again`: after a new login."""
        method, address = call.method, call.address
        headers, contract = known
        contract.check(method, call.request, address)
        timeout_s = call.left_ms() / 1000
        self.watch.note_sent(address)
        try:
            connection, future = self._connections.start(
                address, lambda found: found.call(method).future(call.request, timeout=timeout_s, metadata=headers)
            )
        except BaseException:
            self._note_failure(address)
            raise
        wait = PatientWait(self.watch, connection, call.patience_ms, future)

        def settle(done: Any) -> None:
            wait.end()
            try:
                answer = done.result()
            except grpc.RpcError as failure:
                self._note_failure(address)
                answer = self.failure(connection, failure, method, headers)
                if isinstance(answer, SessionExpired) and not is_again:
                    self._start_in_thread(call, is_again=True)
                    return
            except grpc.FutureCancelledError:
                self._note_failure(address)
                answer = wait.error(method) or call.failed("was cancelled")
            else:
                self._note_answer(address)
            call.on_done(answer)

        future.add_done_callback(settle)
        return future.cancel  # type: ignore[no-any-return]

    def _start_in_thread(self, call: _StartedCall, *, is_again: bool = False) -> Callable[[], object]:
        """On a thread of its own, since a first contact waits for the broker. Nothing cancels it; it ends with its
        time-out."""

        def start() -> None:
            try:
                contact_ms = call.left_ms() if call.patience_ms is None else min(call.left_ms(), call.patience_ms)
                try:
                    known = self.introduce(call.address, contact_ms)
                except SessionExpired:
                    known = self.introduce(call.address, contact_ms)
                self._start(call, known, is_again=is_again)
            except BusError as failure:
                call.on_done(failure)
            except BaseException as failure:  # the thread's edge: who asked waits for an answer
                logger.exception("%s at %s failed", call.method, call.address)
                call.on_done(call.failed(f"failed: {failure!r}"))

        thread = threading.Thread(target=start, name=f"bus-contact-{call.address}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # too many threads, or the interpreter shuts down
            call.on_done(call.failed("was not sent: no thread could be started"))
        return lambda: None

    def _note_failure(self, address: str) -> None:
        self.watch.note_settled(address)
        if self._last_good == address:
            self._last_good = None

    def _note_answer(self, address: str) -> None:
        self.watch.note_answer(address)
        self._last_good = address
        self.was_reached = True

    def candidates(self) -> list[str]:
        """Every address that may be a broker's, the likeliest first."""
        preferred = [self._last_good] if self._last_good is not None else []
        return self.watch.likeliest_first(dict.fromkeys([*preferred, *self.metadata.addresses(), *self._bootstrap]))

    def candidate_in_turn(self, number: int) -> str:
        """Return a candidate that is expected to answer, if there is one."""
        candidates = self.candidates()
        likely = [address for address in candidates if not self.watch.is_avoided(address)] or candidates
        return likely[number % len(likely)]

    def open_stream(
        self,
        address: str,
        method: str,
        requests: Iterable[bytes],
        known: Acquaintance,
        refuse: Callable[[BusError], None],
    ) -> tuple[Connection, Any]:
        """A bidirectional call, and the connection that it is on. The requests are serialized already; one with a
        field that the broker lacks ends them, and `refuse` gets the error, in a thread of gRPC's. Raises `BusError` for
        a call that the broker lacks."""
        self.home.check()
        headers, contract = known
        contract.check_call(method, address)
        request_class, response_class = (
            getattr(pb, one.name)
            for one in (SERVICE.methods_by_name[method].input_type, SERVICE.methods_by_name[method].output_type)
        )
        requests = contract.checked(requests, request_class, address, refuse)
        return self._connections.start(
            address,
            lambda found: found.channel.stream_stream(
                f"/{SERVICE.full_name}/{method}",
                request_serializer=None,
                response_deserializer=response_class.FromString,
            )(iter(requests), metadata=headers),
            is_request=False,
        )

    def join(self, connection: Connection, stream: Leaving) -> None:
        """Have a stream that `open_stream` made leave a connection on which requests have no answer in time."""
        self._connections.join(connection, stream)

    def part(self, connection: Connection, stream: Leaving) -> None:
        self._connections.part(connection, stream)

    def note_late(self, connection: Connection) -> None:
        """A request of a stream has had no answer in time: what comes later has another connection."""
        self._connections.note_late(connection)

    def failure(
        self,
        connection: Connection,
        failure: grpc.RpcError,
        what: str,
        shown: tuple[tuple[str, str], ...] | None = None,
    ) -> BusError:
        """Return the error that a failed call or stream means for a user. `shown`: its headers, if they are known."""
        if self._closed.is_set():
            return closed_client()
        error = self._connections.failure(connection, failure, what)
        if isinstance(error, SessionExpired):
            self._logins.forget(connection.address, shown)
        if error.code in _OF_ANOTHER_BROKER:
            self._contracts.pop(connection.address, None)
        return error

    def open_answers(self, method: str, request: Any, *, address: str) -> Generator[Any, None, None]:
        """A call with many answers, made at once and without a deadline. The generator raises `BusError`; closing it,
        or letting go of it, ends the call. It ends by itself where nothing has come on its connection for
        request.timeout.ms, nor in as long after a question."""
        self.home.check()
        headers, contract = self.introduce(address)
        contract.check(method, request, address)
        response_class = getattr(pb, SERVICE.methods_by_name[method].output_type.name)
        connection, stream = self._connections.start(
            address,
            lambda found: found.channel.unary_stream(
                f"/{SERVICE.full_name}/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=response_class.FromString,
            )(request, metadata=headers),
            is_request=False,
        )
        return self._answers(connection, stream, method)

    def _answers(self, connection: Connection, stream: Any, method: str) -> Generator[Any, None, None]:
        keep_in_children(stream)
        self.watch.note_sent(connection.address)
        wait = PatientWait(self.watch, connection, self._config.request_timeout_ms, stream)
        try:
            for answer in stream:
                connection.note_heard()
                self.watch.note_heard(connection.address)
                yield answer
        except grpc.RpcError as failure:
            raise wait.error(method) or self.failure(connection, failure, method) from None
        finally:
            if self.home.is_here():  # in a child of a fork the stream belongs to the parent
                wait.end()
                self.watch.note_settled(connection.address)
                stream.cancel()

    # ------------------------------------------------------------ silent brokers

    def _who_is_fenced(self) -> dict[str, bool] | None:
        """Ask one broker, another one each time, which brokers are fenced; None if none answers."""
        candidates = [address for address in self.candidates() if not self.watch.is_avoided(address)]
        self._turn += 1
        first = self._turn % len(candidates) if candidates else 0
        request = pb.DescribeClusterRequest(include_fenced_brokers=True)
        for candidate in candidates[first:] + candidates[:first]:
            try:
                response = self._call_one(candidate, "DescribeCluster", request, SILENT_AFTER_MS)
            except BusError:
                continue
            live = {address_of(broker) for broker in response.brokers if not broker.is_fenced}
            return {address: address not in live for address in map(address_of, response.brokers)}
        return None

    def _ask_on(self, connection: Connection, timeout_ms: float) -> None:
        """Ask whether anything comes on it: each answer will do, also a refusal."""

        def settle(done: Any) -> None:
            code = done.code()
            is_late = code is grpc.StatusCode.DEADLINE_EXCEEDED
            if is_late:
                self._connections.note_late(connection)
            elif code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                connection.note_heard()
                self.watch.note_heard(connection.address)
            self.watch.note_asked(connection, is_late=is_late)

        headers = self._logins.ready_headers(connection.address) or ()
        try:
            question = connection.call("ApiVersions").future(
                new_question(), timeout=timeout_ms / 1000, metadata=headers
            )
        except ValueError:  # gRPC's word for a channel that is closed
            self.watch.note_asked(connection, is_late=False)
        else:
            question.add_done_callback(settle)

    def _give_up_fenced(self, address: str) -> None:
        self._connections.give_up(address, f"the broker at {address} does not answer, and the cluster has fenced it")

    def close(self) -> None:
        """Ends every call that is under way or waits to be repeated. Safe to repeat."""
        if not self.home.is_here():
            return
        check_outside()
        self._closed.set()
        self.watch.close()
        self._logins.close()
        self._connections.close()


def _left_ms(deadline_ms: float, timeout_ms: float) -> float:
    """The part of a time-out that a first contact has left, and enough for one attempt in any case."""
    return max(deadline_ms - monotonic_ms(), min(timeout_ms, _ATTEMPT_MS_MIN))


def _checked(answer: Any, check: Callable[[Any], None]) -> Any:
    """The answer of a call, or the `BusError` that it ended with."""
    if isinstance(answer, BusError):
        return answer
    try:
        check(answer)
    except BusError as error:
        return error
    return answer
