"""One gRPC connection for each address, and what a failure of one means.

Guards two promises. A broker that has come back is reached by the next attempt: gRPC lets a channel that could not
connect rest before it tries again, and fails every call meanwhile; so such a channel is given up at once, and the next
attempt makes a new one. And a network that swallows what is sent on a connection, without a word, costs a client one
time-out: where a request has had no answer in time, whatever comes later has another connection. The one before is
*retired*: what is under way on it goes on, since the broker may just be slow, each until its own time-out; it is closed
behind the last of them. The caller decides how soon an attempt follows. Safe to use from several threads.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from bus.addresses import parse_address
from bus.client.config.security import Security
from bus.client.connection.processes import note_connected
from bus.client.connection.retrying import monotonic_ms
from bus.client_texts import one_line
from bus.errors import BusError, ErrorCode
from bus.grpc_api.contract import CONTRACT_DIGEST, CONTRACT_VERSION, KnownFields, software_version
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.platform.reentry import OwnLock, logger_of
from bus.security.scram import SESSION_EXPIRED

if TYPE_CHECKING:
    from bus.security.key_material import WatchedKeyMaterial

ResultT = TypeVar("ResultT")

_PROBE_TIMEOUT_S = 1.0
_NOT_TRUSTED = (
    "this client does not trust the authority that signed the broker's certificate: set ssl_ca_location to the file of "
    "that authority"
)
# Texts in gRPC's details, and their meaning.
_REASONS = (
    ("certificate has expired", "the broker's certificate has expired"),
    ("certificate is not yet valid", "the broker's certificate is not valid yet; is the clock of this machine right?"),
    ("certificate_verify_failed", _NOT_TRUSTED),
    ("certificate signature failure", _NOT_TRUSTED),  # an authority of the same name, with another key
    (
        "hostname verification check failed",
        "the broker's certificate is for another host: connect by a name that is in it",
    ),
    ("wrong_version_number", "the listener speaks no TLS: set security_protocol to PLAINTEXT, or take another port"),
)


class ChannelSecurity:
    """The security of all connections of a client. The next connection uses files as they are then."""

    def __init__(self, security: Security) -> None:
        """Raises `BusError` INVALID_CONFIG for files that cannot be used."""
        self.security = security
        self._watched: WatchedKeyMaterial | None = None
        if not security.has_tls:
            return
        from bus.security.key_material import KeyMaterialFault, WatchedKeyMaterial

        try:
            self._watched = WatchedKeyMaterial(security.files)
        except KeyMaterialFault as fault:
            raise BusError(ErrorCode.INVALID_CONFIG, str(fault)) from None

    def open_channel(self, address: str, options: list[tuple[str, object]]) -> grpc.Channel:
        if self._watched is None:
            return grpc.insecure_channel(address, options=options)
        self._watched.look()
        material = self._watched.current
        credentials = grpc.ssl_channel_credentials(material.trusted, material.key, material.chain)
        return grpc.secure_channel(address, credentials, options=options)

    def explain(self, address: str, details: str) -> str | None:
        """Why a connection that could not be made will not be made later either; None if that is not known. gRPC says
        of most refusals no more than that the socket was closed; so the listener is asked once, by a handshake that
        trusts everybody and sends nothing, whether it speaks TLS at all."""
        found = details.lower()
        for sign, reason in _REASONS:
            if sign in found:
                return reason
        if "ssl_error_ssl" in found:
            return f"the TLS handshake failed: {details}"
        if "socket closed" not in found or not speaks_tls(address):
            return None
        if not self.security.has_tls:
            return "the listener expects TLS: set security_protocol to SSL, or SASL_SSL with a login"
        if self.security.files.certificate is None:
            return "the listener expects a certificate of the client: set ssl_certificate_location and ssl_key_location"
        return (
            "the broker has refused the certificate of this client: is it of an authority that the broker trusts "
            "(ssl.truststore.location), and valid?"
        )


def speaks_tls(address: str) -> bool:
    """True if a TLS handshake at the address gets as far as the server's certificate; False if nothing answers."""
    found = parse_address(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((found.host, found.port), timeout=_PROBE_TIMEOUT_S) as connection,
            context.wrap_socket(connection),
        ):
            return True
    except OSError:  # ssl.SSLError, too: another protocol
        return False


logger = logger_of(__name__)

# Kafka's socket.connection.setup.timeout.ms: TCP and the first frames of HTTP/2, on a machine that may be busy.
_CONNECT_TIMEOUT_MS = 10_000
SERVICE = pb.DESCRIPTOR.services_by_name["Bus"]

# The texts of gRPC when there was no connection to send on, so that nothing of the call can have reached a broker.
_UNKNOWN_HOST = ("errors resolving", "dns resolution failed", "address lookup failed")
_NEVER_CONNECTED = ("failed to connect", *_UNKNOWN_HOST)


class NotConnected(BusError):
    """There was no connection: the call was not sent."""


class SessionExpired(BusError):
    """The broker has not looked at the call: what it showed was good, and is not any more. A new login may help."""


class ConnectionSettings(Protocol):
    @property
    def enable_http_proxy(self) -> bool: ...
    @property
    def request_timeout_ms(self) -> int: ...
    @property
    def reconnect_backoff_ms(self) -> int: ...
    @property
    def reconnect_backoff_max_ms(self) -> int: ...


class Leaving(Protocol):
    """A stream that lasts."""

    def leave(self) -> None:
        """End, if no answer is awaited: what comes later is better sent on another connection."""
        ...


class Connection:
    """To one address. `call(method)` is a unary call of the service."""

    __slots__ = (
        "__weakref__",
        "_calls",
        "address",
        "calls_under_way",
        "channel",
        "created_at_ms",
        "given_up",
        "heard_at_ms",
        "is_heard",
        "is_retired",
        "silent_since_ms",
        "streams",
    )

    def __init__(self, address: str, channel: grpc.Channel) -> None:
        self.address = address
        self.channel = channel
        self.given_up: str | None = None  # why all that was under way on it has failed
        self.is_retired = False  # nothing new is begun on it
        self.calls_under_way = 0
        self.streams: set[Leaving] = set()
        self.created_at_ms = self.heard_at_ms = monotonic_ms()  # heard: when something came last
        self.is_heard = False  # the broker has answered something
        self.silent_since_ms: float | None = None  # when the first request went out that nothing has come after
        self._calls: dict[str, Any] = {}
        note_connected(self)

    def close(self) -> None:
        self.channel.close()

    def note_sent(self) -> None:
        if self.silent_since_ms is None:
            self.silent_since_ms = monotonic_ms()

    def note_heard(self) -> None:
        self.is_heard, self.silent_since_ms, self.heard_at_ms = True, None, monotonic_ms()

    def call(self, method: str) -> Any:
        call = self._calls.get(method)
        if call is None:
            descriptor = SERVICE.methods_by_name[method]
            call = self._calls[method] = self.channel.unary_unary(
                f"/{SERVICE.full_name}/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=getattr(pb, descriptor.output_type.name).FromString,
            )
        return call


class UnusableConnection(NotConnected):
    """The settings or the certificates have to change before a connection can succeed: trying again is useless."""


class Connections:
    def __init__(self, settings: ConnectionSettings, security: Security) -> None:
        """Raises `BusError` INVALID_CONFIG for certificates that cannot be used."""
        self._security = ChannelSecurity(security)
        self._options = _channel_options(settings)
        self._silence_ms_max = settings.request_timeout_ms
        self._lock = OwnLock()
        self._connections: dict[str, Connection] = {}
        self._retired: set[Connection] = set()
        self._is_closed = False

    def start(
        self, address: str, begin: Callable[[Connection], ResultT], *, is_request: bool = True
    ) -> tuple[Connection, ResultT]:
        """Call `begin` with the connection to `address`; return that connection and the result.

        `begin` may be asked again with another connection, if the first one was given up in between: it only starts a
        call, or is one. `is_request`: an answer is due; a stream has requests of its own. Raises `BusError`
        INVALID_REQUEST if this client is closed.
        """
        while True:
            connection = self._enter(address)
            try:
                if is_request:
                    connection.note_sent()
                result = begin(connection)
            except ValueError:  # gRPC's word for a channel that is closed
                self._leave(connection)
                if self._connections.get(address) is connection:
                    raise
            except BaseException:
                self._leave(connection)
                raise
            else:
                self._leave_at_end(connection, result, is_request=is_request)
                return connection, result

    def _enter(self, address: str) -> Connection:
        """The connection, for one call more."""
        while True:
            with self._lock:
                if self._is_closed:
                    raise closed_client()
                found = self._connections.get(address)
                if found is None:
                    found = Connection(address, self._security.open_channel(address, self._options))
                    self._connections[address] = found
                if not self._is_silent(found):
                    found.calls_under_way += 1
                    return found
            # The caller that waited may have gone before the time was over.
            self._retire(found)

    def _is_silent(self, connection: Connection) -> bool:
        since_ms = connection.silent_since_ms
        return since_ms is not None and monotonic_ms() - since_ms >= self._silence_ms_max

    def _leave_at_end(self, connection: Connection, result: Any, *, is_request: bool) -> None:
        if not isinstance(result, grpc.RpcContext):  # it was the answer
            connection.note_heard()
            self._leave(connection)
            return

        def leave() -> None:
            if is_request and result.code() is grpc.StatusCode.OK:
                connection.note_heard()
            self._leave(connection)

        if not result.add_callback(leave):
            leave()

    def _leave(self, connection: Connection) -> None:
        with self._lock:
            connection.calls_under_way -= 1
            is_unused = connection.is_retired and not connection.calls_under_way
            if is_unused:
                self._retired.discard(connection)
        if is_unused:
            _close_elsewhere(connection)

    def failure(self, connection: Connection, failure: grpc.RpcError, what: str) -> BusError:
        """Say what a failed call means for a user. A connection that never came about is given up, one without an
        answer in time is retired."""
        if connection.given_up is not None:
            return BusError(ErrorCode.NETWORK_EXCEPTION, f"{what}: {connection.given_up}")
        match failure.code():
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                self.note_late(connection)
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
                pass
            case _:
                connection.note_heard()
        error = self._translate(failure, connection.address, what)
        if isinstance(error, NotConnected):
            self._give_up(connection)
        return error

    def _translate(self, failure: grpc.RpcError, address: str, what: str) -> BusError:
        error = translate_rpc_error(failure, address=address, what=what)
        if not isinstance(error, NotConnected):
            return error
        reason = self._security.explain(address, failure.details() or "")
        if reason is None:
            return error
        return UnusableConnection(error.code, f"the broker at {address} cannot be reached: {reason}")

    def note_late(self, connection: Connection) -> None:
        """A request on it has had no answer in time. One that is still being made is let be, for as long as that may
        take: calls with little time would never see it made."""
        age_ms = monotonic_ms() - connection.created_at_ms
        if connection.is_heard or age_ms >= min(self._silence_ms_max, _CONNECT_TIMEOUT_MS):
            self._retire(connection)

    def _retire(self, connection: Connection) -> None:
        with self._lock:
            if connection.is_retired or self._connections.get(connection.address) is not connection:
                return
            del self._connections[connection.address]
            connection.is_retired = True
            is_unused = not connection.calls_under_way
            if not is_unused:
                self._retired.add(connection)
            streams = list(connection.streams)
        logger.debug("an answer of the broker at %s is late: what comes has another connection", connection.address)
        for stream in streams:
            stream.leave()
        if is_unused:
            _close_elsewhere(connection)

    def join(self, connection: Connection, stream: Leaving) -> None:
        """Have a stream that lasts end with the connection; `part` follows."""
        with self._lock:
            connection.streams.add(stream)
            is_late = connection.is_retired
        if is_late:
            stream.leave()

    def part(self, connection: Connection, stream: Leaving) -> None:
        with self._lock:
            connection.streams.discard(stream)

    def give_up(self, address: str, reason: str) -> None:
        """All that is under way there fails with NETWORK_EXCEPTION; what comes later has another connection."""
        with self._lock:
            there = [found for found in (*self._connections.values(), *self._retired) if found.address == address]
        for connection in there:
            connection.given_up = reason
            self._give_up(connection)

    def _give_up(self, connection: Connection) -> None:
        with self._lock:
            if self._connections.get(connection.address) is connection:
                del self._connections[connection.address]
            elif connection in self._retired:
                self._retired.discard(connection)
            else:
                return
        _close_elsewhere(connection)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            connections = [*self._connections.values(), *self._retired]
            self._connections.clear()
            self._retired.clear()
        for connection in connections:
            connection.close()


def _close_elsewhere(connection: Connection) -> None:
    """A channel's own thread, on which callbacks run, must not close it: closing waits for that thread."""
    try:
        threading.Thread(target=connection.close, name="bus-disconnect", daemon=True).start()
    except RuntimeError:  # the interpreter shuts down, and the connection with it
        return


def closed_client() -> BusError:
    return BusError(ErrorCode.INVALID_REQUEST, "this client is closed")


def translate_rpc_error(error: grpc.RpcError, *, address: str, what: str) -> BusError:
    """A gRPC status as the error of the bus that tells a user what to do."""
    status, details = error.code(), one_line(error.details() or "no details")
    match status:
        case grpc.StatusCode.UNAVAILABLE:
            return _unreachable(address, details)
        case grpc.StatusCode.UNAUTHENTICATED if SESSION_EXPIRED in details:
            return SessionExpired(ErrorCode.NETWORK_EXCEPTION, f"{what} at {address}: {details}")
        case grpc.StatusCode.UNAUTHENTICATED if details.startswith(ErrorCode.UNSUPPORTED_SASL_MECHANISM.name):
            reason = details.removeprefix(f"{ErrorCode.UNSUPPORTED_SASL_MECHANISM.name}: ")
            return BusError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"{what} at {address}: {reason}")
        case grpc.StatusCode.UNAUTHENTICATED:
            return BusError(ErrorCode.SASL_AUTHENTICATION_FAILED, f"{what} at {address}: {details}")
        case grpc.StatusCode.CANCELLED:
            return BusError(ErrorCode.NETWORK_EXCEPTION, f"{what} at {address} was cancelled: {details}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return BusError(ErrorCode.REQUEST_TIMED_OUT, f"{what} at {address}: no answer in time")
        case grpc.StatusCode.INVALID_ARGUMENT:
            return BusError(ErrorCode.INVALID_REQUEST, f"{what} at {address}: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return BusError(ErrorCode.UNSUPPORTED_VERSION, f"{what} is not known to the server at {address}: {details}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if details.startswith(ErrorCode.THROTTLING_QUOTA_EXCEEDED.name):
            return BusError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{what} at {address}: {details}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return BusError(ErrorCode.RECORD_LIST_TOO_LARGE, f"{what} at {address}: {details}")
        case _:
            return BusError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{what} at {address}: {status.name}: {details}")


def _unreachable(address: str, details: str) -> BusError:
    found = details.lower()
    if any(sign in found for sign in _UNKNOWN_HOST):
        message = (
            f"no host {parse_address(address).host!r} is known, of the broker at {address}: is the name right, in the "
            "address that this client was given, or in advertised.listeners (advertise) of the broker?"
        )
    elif "refused" in found:
        message = (
            f"no broker listens at {address} (connection refused); start one with: bus serve --listen {address}, "
            "or a cluster with: bus cluster up"
        )
    else:
        message = f"the broker at {address} cannot be reached: {details}"
    is_sent = not any(sign in found for sign in _NEVER_CONNECTED)
    return (BusError if is_sent else NotConnected)(ErrorCode.NETWORK_EXCEPTION, message)


def _channel_options(settings: ConnectionSettings) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", settings.reconnect_backoff_ms),
        # The name says pause; it is the time-out of one attempt to connect.
        ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
        ("grpc.max_reconnect_backoff_ms", settings.reconnect_backoff_max_ms),
        # Each client its own connection: two producers of one process must not share one flow-control window.
        ("grpc.use_local_subchannel_pool", 1),
        # gRPC goes by grpc_proxy, https_proxy and http_proxy, which are there for the web and lead to no broker.
        ("grpc.enable_http_proxy", int(settings.enable_http_proxy)),
    ]


@dataclass(frozen=True, slots=True)
class BrokerFeature:
    """level_min <= level <= level_max: what the broker can work at, and what the cluster works at."""

    name: str
    level: int
    level_min: int
    level_max: int


@dataclass(frozen=True, slots=True)
class BrokerContract:
    """The contract of one broker, which a client asks for once, before its first call there. A call, or a field of a
    request, that the broker lacks is refused here by name (UNSUPPORTED_VERSION), before anything is sent. A broker may
    be replaced by one of another release, so the contract is forgotten when a call or a stream there fails.

    `fields`: None if the broker's contract is this client's own, or is not known. `version` 0: the broker does not know
    the question, and nothing is known of it."""

    version: int = 0
    software_version: str = ""
    calls: frozenset[str] | None = None
    features: tuple[BrokerFeature, ...] = ()
    fields: KnownFields | None = None

    def check_call(self, method: str, address: str) -> None:
        """Raises `BusError` UNSUPPORTED_VERSION."""
        if self.calls is not None and method not in self.calls:
            raise self._unsupported(f"the call {method}", address)

    def check(self, method: str, request: Message, address: str) -> None:
        """Raises `BusError` UNSUPPORTED_VERSION for a call or a field that the broker lacks."""
        self.check_call(method, address)
        if self.fields is not None:
            unknown = self.fields.find_unknown(request)
            if unknown is not None:
                raise self._unsupported(f"the field {unknown}", address)

    def checked(
        self, requests: Iterable[bytes], request_class: Any, address: str, refuse: Callable[[BusError], None]
    ) -> Iterable[bytes]:
        """The requests of a stream. The first one with a field that the broker lacks ends them, and `refuse` gets the
        error."""
        return requests if self.fields is None else self._checked(requests, request_class, address, refuse)

    def _checked(
        self, requests: Iterable[bytes], request_class: Any, address: str, refuse: Callable[[BusError], None]
    ) -> Iterator[bytes]:
        assert self.fields is not None
        for request in requests:
            unknown = self.fields.find_unknown(request_class.FromString(request))
            if unknown is not None:
                refuse(self._unsupported(f"the field {unknown}", address))
                return
            yield request

    def _unsupported(self, what: str, address: str) -> BusError:
        return BusError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"expected a broker that knows {what}, found one that does not at {address}: its contract is "
            f"{self.version} (delta-bus {self.software_version}), this client's {CONTRACT_VERSION}; upgrade the broker",
        )


UNKNOWN_CONTRACT = BrokerContract()


def new_question() -> pb.ApiVersionsRequest:
    return pb.ApiVersionsRequest(
        client_software_name="delta-bus-python",
        client_software_version=software_version(),
        contract_digest=CONTRACT_DIGEST,
    )


def decode_contract(answer: pb.ApiVersionsResponse, address: str) -> BrokerContract:
    """Return what an answer without an error says. Raises `BusError` for one that makes no sense: a broker always names
    the version of its contract, and every message without fields reads as an empty answer."""
    if answer.contract_version < 1:
        raise BusError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"expected a contract of version 1 or later of the broker at {address}, found {answer.contract_version}: "
            "is it another program?",
        )
    try:
        fields = KnownFields(answer.contract) if answer.contract else None
    except ValueError as error:
        raise BusError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the contract of the broker at {address}: {error}") from None
    return BrokerContract(
        answer.contract_version,
        answer.broker_software_version,
        frozenset(answer.calls),
        tuple(BrokerFeature(one.name, one.level, one.min_level, one.max_level) for one in answer.features),
        fields,
    )
