"""How a client logs in: what each of its calls shows, by the address that it goes to.

Theory of operation. By SCRAM a broker gives a session, which the next calls there show. The first call that needs it
begins a login in a thread of its own, and waits for it, as do calls of other threads to that address. Each waits as
long as it may take itself; the login has bounds of its own, so one that takes longer than a call serves the next call.
A thread that lives while there are sessions renews each at four fifths of its life: the broker extends it, so streams
that were begun by it go on. A session that a broker does not know any more (it started again, the password was changed)
is forgotten, and the call is made once more behind a new login. By OAUTHBEARER a token gives a session, and a newer
token extends it; they come from `bus.security.oauth.token_sources`. By PLAIN each call shows name and password. Guards
one promise: password, token and session are in no error, no log line and no `repr`.
"""

from __future__ import annotations

import base64
import copy
import functools
import queue
import random
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc

from bus.client.config.security import ClientLogin, TokenLogin
from bus.client.connection.connections import SERVICE, Connection, Connections
from bus.client.connection.retrying import monotonic_ms
from bus.client_texts import one_line
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.platform.reentry import Flag, OwnCondition, OwnLock, Turn, logger_of
from bus.security.oauth.documents import FETCH_SECONDS_MAX
from bus.security.oauth.token_sources import TokenSource, client_response
from bus.security.scram import OAUTHBEARER, PLAIN, SCRAM_MECHANISMS, ScramClient, ScramError, salt_password

logger = logger_of(__name__)

Headers = tuple[tuple[str, str], ...]
# Kafka's sasl.login.refresh.window.factor and jitter.
_RENEWED_AFTER, _JITTER = 0.8, 0.05
_RENEWAL_TIMEOUT_MS = 10_000.0
_TOKEN_TIMEOUT_MS = FETCH_SECONDS_MAX * 1_000
_RENEWAL_PAUSE_MIN_MS = 100.0


class Watch(Protocol):
    """The watch for brokers that do not answer."""

    def note_sent(self, address: str) -> None: ...
    def note_answer(self, address: str) -> None: ...
    def note_settled(self, address: str, count: int = 1) -> None: ...


@dataclass(frozen=True, slots=True)
class _Session:
    headers: Headers = field(repr=False)
    renewed_at_ms: float


class _Attempt:
    """A login under way. Once `ended` is set there is a session, or an error, or neither: what was to begin it was
    interrupted, and whoever waits for it begins another one."""

    def __init__(self) -> None:
        self.ended = Flag()
        self.session: _Session | None = None
        self.error: BaseException | None = None


class _Place:
    """The login at one address. The thread that holds the lock logs in there."""

    def __init__(self) -> None:
        self.lock = Turn()
        self.session: _Session | None = None
        self.attempt: _Attempt | None = None


class _Dialogue:
    """One login at one broker."""

    def __init__(self, requests: queue.SimpleQueue[Any], answers: Iterator[Any], address: str) -> None:
        self._requests = requests
        self._answers = answers
        self._address = address

    def ask(self, request: Any) -> Any:
        """Raises `BusError` for a refusal, `grpc.RpcError`."""
        self._requests.put(request)
        return _next(self._answers, self._address)


class Logins:
    """Safe to use from several threads. Without a login (None) all calls show the `client_headers` alone."""

    def __init__(
        self,
        login: ClientLogin | TokenLogin | None,
        client_headers: Headers,
        connections: Connections,
        request_timeout_ms: float,
    ) -> None:
        self._login = login if isinstance(login, ClientLogin) else None
        self._tokens = TokenSource(login.tokens) if isinstance(login, TokenLogin) else None
        self._client_headers = client_headers
        self._connections = connections
        self._request_timeout_ms = request_timeout_ms
        self._watch: Watch | None = None
        self._fixed = client_headers if login is None else None
        if isinstance(login, ClientLogin) and login.mechanism == PLAIN:
            shown = base64.b64encode(f"{login.name}:{login.password}".encode()).decode()
            self._fixed = (*client_headers, ("authorization", f"Basic {shown}"))
        self._places: dict[str, _Place] = {}
        self._salted: tuple[bytes, int, bytes] | None = None  # salt, iterations, and the password salted with them
        self._changed = OwnCondition(OwnLock())
        self._renewing: threading.Thread | None = None
        self._is_closed = False

    def use_watch(self, watch: Watch) -> None:
        self._watch = watch

    def ready_headers(self, address: str) -> Headers | None:
        """Return what `headers` does, without waiting; None if it would wait for a broker."""
        if self._fixed is not None:
            return self._fixed
        place = self._places.get(address)
        session = None if place is None else place.session
        return None if session is None else (*self._client_headers, *session.headers)

    def headers(self, address: str, timeout_ms: float) -> Headers:
        """Return the headers for a call to this address. Raises `BusError`: SASL_AUTHENTICATION_FAILED and
        UNSUPPORTED_SASL_MECHANISM are final, others are those of a call that fails."""
        if self._fixed is not None:
            return self._fixed
        place = self._place(address)
        session = place.session
        if session is None:
            session = self._wait_for_login(address, place, timeout_ms)
        return (*self._client_headers, *session.headers)

    def forget(self, address: str, shown: Headers | None = None) -> None:
        """The broker does not know the session any more. `shown`: what the call had, if another login came between."""
        place = self._places.get(address)
        if place is None:
            return
        session = place.session
        if session is not None and (shown is None or session.headers[-1] in shown):
            place.session = None

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _place(self, address: str) -> _Place:
        with self._changed:
            return self._places.setdefault(address, _Place())

    # ------------------------------------------------------------ logging in

    def _wait_for_login(self, address: str, place: _Place, timeout_ms: float) -> _Session:
        place.lock.refuse_here()
        if self._tokens is not None:
            self._tokens.refuse_here()
        deadline_ms = monotonic_ms() + timeout_ms
        while True:
            attempt = self._attempt_at(address, place)
            if not attempt.ended.wait(max(0.0, deadline_ms - monotonic_ms()) / 1000):
                raise BusError(ErrorCode.REQUEST_TIMED_OUT, f"the login at {address}: no answer in time")
            if attempt.error is not None:
                raise copy.copy(attempt.error)  # each thread that waited has a traceback of its own
            if attempt.session is not None:
                return attempt.session

    def _attempt_at(self, address: str, place: _Place) -> _Attempt:
        """Return the one that is under way, or a new one."""
        attempt = _Attempt()
        log_in = functools.partial(self._try_to_log_in, address, place, attempt)
        try:
            with self._changed:
                if place.attempt is not None:
                    return place.attempt
                place.attempt = attempt
            threading.Thread(target=log_in, name=f"bus-login-{address}", daemon=True).start()
        except RuntimeError:  # too many threads, or the interpreter shuts down
            log_in()
        except BaseException:  # a signal handler's
            self._end(place, attempt)
            raise
        return attempt

    def _try_to_log_in(self, address: str, place: _Place, attempt: _Attempt) -> None:
        try:
            with place.lock:
                session = place.session or self._log_in(address, place, (), self._request_timeout_ms)
            self._renew_later()
        except BaseException as error:  # raised in the waiting threads
            self._end(place, attempt, error=error)
        else:
            self._end(place, attempt, session)

    def _end(
        self, place: _Place, attempt: _Attempt, session: _Session | None = None, error: BaseException | None = None
    ) -> None:
        """End it once: a thread whose start was interrupted may have started all the same."""
        with self._changed:
            if attempt.ended.is_set():
                return
            attempt.session, attempt.error = session, error
            if place.attempt is attempt:
                place.attempt = None
            attempt.ended.set()

    def _log_in(self, address: str, place: _Place, held: Headers, timeout_ms: float) -> _Session:
        """`held`: the session to extend. `timeout_ms`: of the dialogue with the broker."""
        tokens, watch = self._tokens, self._watch
        token = "" if tokens is None else tokens.token(_TOKEN_TIMEOUT_MS)
        exchange = self._exchange if tokens is None else functools.partial(_hand_over, token)
        if watch is not None:
            watch.note_sent(address)
        try:
            _, session = self._connections.start(
                address, lambda found: self._converse(found, held, timeout_ms, exchange)
            )
        except BaseException as error:
            if watch is not None:
                watch.note_settled(address)
            if tokens is not None and isinstance(error, BusError) and not error.retriable:
                tokens.forget(token)
            raise
        if watch is not None:
            watch.note_answer(address)
        place.session = session
        return session

    def _converse(
        self, connection: Connection, held: Headers, timeout_ms: float, exchange: Callable[[_Dialogue], Any]
    ) -> _Session:
        """`exchange`: the messages of a mechanism; it returns the broker's last one."""
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        answers = connection.channel.stream_stream(
            f"/{SERVICE.full_name}/SaslAuthenticate",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=pb.SaslAuthenticateResponse.FromString,
        )(
            iter(requests.get, None),
            timeout=timeout_ms / 1000,
            metadata=(*self._client_headers, *held),
        )
        try:
            last = exchange(_Dialogue(requests, answers, connection.address))
        except ScramError as error:
            raise _failed(connection.address, str(error)) from None
        except grpc.RpcError as failure:
            raise self._connections.failure(connection, failure, "the login") from None
        finally:
            requests.put(None)
            answers.cancel()
        life_ms = last.session_lifetime_ms * (_RENEWED_AFTER - random.random() * _JITTER)
        return _Session((("authorization", f"Session {last.session_token}"),), monotonic_ms() + life_ms)

    def _exchange(self, dialogue: _Dialogue) -> Any:
        """Log in by SCRAM."""
        login = self._login
        assert login is not None, "only a client with a login logs in"
        mechanism = SCRAM_MECHANISMS[login.mechanism]
        client = ScramClient(mechanism, login.name, login.password, secrets.token_urlsafe(24), salted=self._salt)
        first = dialogue.ask(pb.SaslAuthenticateRequest(mechanism=mechanism.name, auth_bytes=client.first()))
        last = dialogue.ask(pb.SaslAuthenticateRequest(auth_bytes=client.final(first.auth_bytes)))
        client.check(last.auth_bytes)
        return last

    def _salt(self, salt: bytes, iterations: int) -> bytes:
        """Milliseconds of processor, once for all brokers."""
        known = self._salted
        if known is not None and known[:2] == (salt, iterations):
            return known[2]
        login = self._login
        assert login is not None, "only a client with a login logs in"
        salted = salt_password(SCRAM_MECHANISMS[login.mechanism], login.password, salt, iterations)
        self._salted = (salt, iterations, salted)
        return salted

    # ------------------------------------------------------------ renewing

    def _renew_later(self) -> None:
        with self._changed:
            self._changed.notify()
            if self._renewing is not None or self._is_closed:
                return
            thread = threading.Thread(target=self._renew, name="bus-logins", daemon=True)
            try:
                thread.start()
            except (
                RuntimeError
            ):  # too many threads, or the interpreter shuts down: the session expires, and that is all
                return
            self._renewing = thread

    def _renew(self) -> None:
        for address, place, session in self._due():
            try:
                with place.lock:
                    if place.session is session:
                        self._log_in(address, place, session.headers, _RENEWAL_TIMEOUT_MS)
            except BusError as error:
                # The next call logs in by itself and reports the fault.
                logger.info("the session at %s was not renewed: %s", address, error)
                if place.session is session:
                    place.session = None

    def _due(self) -> Iterator[tuple[str, _Place, _Session]]:
        """Each session when it is to be renewed, until there is none or this client is closed."""
        while True:
            with self._changed:
                found = [(session.renewed_at_ms, address) for address, session in self._sessions()]
                if self._is_closed or not found:
                    self._renewing = None
                    return
                due_ms, address = min(found)
                wait_ms = due_ms - monotonic_ms()
                if wait_ms > 0:
                    self._changed.wait(max(_RENEWAL_PAUSE_MIN_MS, wait_ms) / 1000)
                    continue
            place = self._places[address]
            session = place.session
            if session is not None:
                yield address, place, session

    def _sessions(self) -> Iterator[tuple[str, _Session]]:
        for address, place in self._places.items():
            session = place.session
            if session is not None:
                yield address, session


def _hand_over(token: str, dialogue: _Dialogue) -> Any:
    """Log in by OAUTHBEARER."""
    return dialogue.ask(pb.SaslAuthenticateRequest(mechanism=OAUTHBEARER, auth_bytes=client_response(token)))


def _next(answers: Iterator[Any], address: str) -> Any:
    answer = next(answers, None)
    if answer is None:
        raise _failed(address, "the broker has ended the login without a word")
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        raise _failed(address, answer.error_message, ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    if answer.error_code:
        raise _failed(address, answer.error_message)
    return answer


def _failed(address: str, message: str, code: ErrorCode = ErrorCode.SASL_AUTHENTICATION_FAILED) -> BusError:
    return BusError(code, f"the broker at {address}: {one_line(message)}")
