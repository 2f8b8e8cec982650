"""Logins over gRPC: the exchange of SaslAuthenticate, and the caller of each call by its header `authorization`.

Guards two promises: behind a listener with logins no handler runs before its caller is known, but for what is named in
`_LOGIN` and `WITHOUT_LOGIN`; and a stream ends with the login that it was begun by, once what was read before is
answered.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from bus.broker_api.logins import LOGIN_SECONDS_MAX, LoginAnswer, LoginApi, ScramLogin
from bus.broker_api.pipeline import before
from bus.broker_api.requests import Caller
from bus.errors import BusError, ErrorCode, Refused
from bus.grpc_api.server.conversions import caller_of, with_error
from bus.grpc_api.server.guards import StreamRegistry, abort_for, stream_login
from bus.grpc_api.server.request_limits import Unreadable, UnreadableRequest
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.login_table import Login
from bus.runtime.logs import principal
from bus.runtime.tasks import time_limit
from bus.security.oauth.token_sources import TokenSource, client_response
from bus.security.scram import OAUTHBEARER, PLAIN, SCRAM_MECHANISMS, ScramClient, ScramError

AUTHORIZATION_HEADER = "authorization"
_LOGIN = "SaslAuthenticate"
# What a controller asks of a broker that joins, and that answers it as soon as it listens, with or without a login.
WITHOUT_LOGIN = "IdentifyBroker"


class LoginHandler:
    """`has_logins`: of the listener."""

    def __init__(self, api: LoginApi, streams: StreamRegistry, listener: str, *, has_logins: bool) -> None:
        self._api = api
        self._streams = streams
        self._listener = listener
        self._has_logins = has_logins

    async def authenticate(
        self, requests: AsyncIterator[pb.SaslAuthenticateRequest], context: grpc.aio.ServicerContext
    ) -> None:
        caller = caller_of(context, self._listener)
        await self._streams.run(self._authenticate(requests, context, caller), f"login/{caller.request_id}")

    @contextlib.contextmanager
    def opened(self, requests: Any, context: grpc.aio.ServicerContext) -> Iterator[Sequence[Any]]:
        """The stage OPEN_STREAM: a host may log in so often at a time."""
        with self._api.one_of(caller_of(context, self._listener).host):
            yield requests, context

    async def _authenticate(
        self, requests: AsyncIterator[pb.SaslAuthenticateRequest], context: grpc.aio.ServicerContext, caller: Caller
    ) -> None:
        try:
            async with time_limit(LOGIN_SECONDS_MAX):
                # By itself: a status that follows an answer which is held up could not be sent with it.
                await context.send_initial_metadata(())
                await self._converse(requests, context, caller)
        except asyncio.TimeoutError:
            message = f"expected the login to be done within {LOGIN_SECONDS_MAX:.0f} s"
            raise UnreadableRequest(Unreadable(grpc.StatusCode.UNAUTHENTICATED, message)) from None

    async def _converse(
        self, requests: AsyncIterator[pb.SaslAuthenticateRequest], context: grpc.aio.ServicerContext, caller: Caller
    ) -> None:
        login: ScramLogin | None = None
        async for request in requests:
            if login is not None:
                await context.write(self._encode(await login.end(request.auth_bytes)))
                return
            answer = await self._begin(request, context, caller)
            if isinstance(answer, Refused):
                await context.write(self._encode(answer))
                return
            message, login = answer
            await context.write(self._encode(message))
            if login is None:
                return

    async def _begin(
        self, request: pb.SaslAuthenticateRequest, context: grpc.aio.ServicerContext, caller: Caller
    ) -> tuple[LoginAnswer, ScramLogin | None] | Refused:
        if not self._has_logins:
            message = f"listener {self._listener} asks for no login: set security_protocol to PLAINTEXT or SSL"
            return Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, message)
        return await self._api.begin(request.mechanism, request.auth_bytes, caller, authorization_of(context))

    def _encode(self, answer: LoginAnswer | Refused) -> pb.SaslAuthenticateResponse:
        if isinstance(answer, Refused):
            refused = pb.SaslAuthenticateResponse(mechanisms=self._api.mechanisms_at(self._listener))
            return with_error(refused, answer)
        return pb.SaslAuthenticateResponse(
            auth_bytes=answer.message, session_token=answer.session, session_lifetime_ms=answer.lifetime_ms
        )


def authorization_of(context: grpc.aio.ServicerContext) -> str | None:
    for name, value in context.invocation_metadata() or ():
        if name == AUTHORIZATION_HEADER:
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return None


def with_login(
    handle: Callable[..., Any], method: str, *, api: LoginApi, listener: str, on_known: Callable[[str], object]
) -> Callable[..., Any]:
    """The same handler, a coroutine or an async generator, for callers that have logged in: it runs with their
    principal, or ends with UNAUTHENTICATED. `on_known` is called with the peer of a connection whose caller is
    known."""
    if method == _LOGIN:
        return handle

    async def recognise(_: Any, context: grpc.aio.ServicerContext) -> None:
        if method != WITHOUT_LOGIN or authorization_of(context) is not None:
            await _recognise(context, api, listener, on_known)

    return before(recognise)(handle)


async def _recognise(
    context: grpc.aio.ServicerContext, api: LoginApi, listener: str, on_known: Callable[[str], object]
) -> None:
    try:
        caller = caller_of(context, listener)
        found: Login | Refused = await api.caller_login(authorization_of(context), caller)
    except Exception as error:
        await abort_for(error, context)
    if isinstance(found, Refused):
        is_mechanism = found.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
        details = f"{found.code.name}: {found.message}" if is_mechanism else found.message
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, details)
        raise AssertionError("abort raises")
    on_known(context.peer())
    principal.set(found.principal)
    stream_login.set(found)


_METHOD = f"/{pb.DESCRIPTOR.services_by_name['Bus'].full_name}/SaslAuthenticate"
_RENEWED_AFTER = 0.8  # of the life of a session
_RENEWAL_PAUSE_S = 1.0  # after a renewal that has failed

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Session:
    headers: Headers = field(repr=False)
    renewed_at_s: float
    ends_at_s: float


class BrokerLogin:
    """Logs this broker in at all other brokers, which `key` tells apart: one session for each, requested when a call
    needs it and renewed in time. `tokens`: for OAUTHBEARER, in place of the others.

    Guards one promise: no call waits for the renewal of a session that still holds. Otherwise an identity provider that
    hangs would hold up heartbeats until the broker is fenced.
    """

    def __init__(self, mechanism: str, name: str = "", password: str = "", tokens: TokenSource | None = None) -> None:
        self._mechanism = mechanism
        self._tokens = tokens
        self._name = name
        self._password = password
        self._sessions: dict[Hashable, _Session] = {}
        # By connection: who has another connection does not wait for a login that the network has swallowed.
        self._under_way: dict[grpc.aio.Channel, asyncio.Task[_Session | Refused]] = {}

    async def headers(self, channel: grpc.aio.Channel, key: Hashable, *, timeout_s: float) -> Headers | Refused:
        """Return the headers of a call. Raises `grpc.aio.AioRpcError`, or `asyncio.TimeoutError`, if the other broker
        does not answer."""
        if self._mechanism == PLAIN:
            shown = base64.b64encode(f"{self._name}:{self._password}".encode()).decode()
            return (("authorization", f"Basic {shown}"),)
        session, now_s = self._sessions.get(key), _now_s()
        if session is not None and now_s < session.renewed_at_s:
            return session.headers
        login = self._under_way.get(channel) or self._begin(channel, key, timeout_s)
        if session is not None and now_s < session.ends_at_s:
            return session.headers
        await asyncio.wait([login], timeout=timeout_s)
        if not login.done():
            raise asyncio.TimeoutError
        outcome = login.result()
        return outcome if isinstance(outcome, Refused) else outcome.headers

    def _begin(self, channel: grpc.aio.Channel, key: Hashable, timeout_s: float) -> asyncio.Task[_Session | Refused]:
        """Log in beside the callers, who may go. A renewal that fails is begun again after a pause."""
        session = self._sessions.get(key)
        held = () if session is None else session.headers
        login = asyncio.get_running_loop().create_task(self._log_in(channel, held, timeout_s))
        self._under_way[channel] = login

        def end(_: object) -> None:
            del self._under_way[channel]
            outcome = None if login.cancelled() or login.exception() is not None else login.result()
            if isinstance(outcome, _Session):
                self._sessions[key] = outcome
            elif session is not None and self._sessions.get(key) is session:
                self._sessions[key] = replace(session, renewed_at_s=_now_s() + _RENEWAL_PAUSE_S)

        login.add_done_callback(end)
        return login

    def forget(self, key: Hashable) -> None:
        self._sessions.pop(key, None)

    async def _log_in(self, channel: grpc.aio.Channel, held: Headers, timeout_s: float) -> _Session | Refused:
        begun_s = _now_s()
        last = await (self._exchange if self._tokens is None else self._hand_over)(channel, held, timeout_s)
        if isinstance(last, Refused):
            return last
        life_s = last.session_lifetime_ms / 1000
        headers = (("authorization", f"Session {last.session_token}"),)
        return _Session(headers, _now_s() + life_s * _RENEWED_AFTER, begun_s + life_s)

    async def _hand_over(
        self, channel: grpc.aio.Channel, held: Headers, timeout_s: float
    ) -> pb.SaslAuthenticateResponse | Refused:
        """A token, by OAUTHBEARER."""
        tokens = self._tokens
        assert tokens is not None, "a login without tokens is one by SCRAM"
        try:
            token = await asyncio.to_thread(tokens.token, timeout_s * 1000)
        except BusError as error:
            return Refused(error.code, error.message)
        call = _start(channel, held, timeout_s)
        try:
            answer = await _ask(
                call, pb.SaslAuthenticateRequest(mechanism=OAUTHBEARER, auth_bytes=client_response(token))
            )
        finally:
            call.cancel()
        if isinstance(answer, Refused):
            tokens.forget(token)
        return answer

    async def _exchange(
        self, channel: grpc.aio.Channel, held: Headers, timeout_s: float
    ) -> pb.SaslAuthenticateResponse | Refused:
        """Messages, by SCRAM."""
        mechanism = SCRAM_MECHANISMS[self._mechanism]
        client = ScramClient(mechanism, self._name, self._password, secrets.token_urlsafe(24))
        call = _start(channel, held, timeout_s)
        try:
            first = await _ask(call, pb.SaslAuthenticateRequest(mechanism=mechanism.name, auth_bytes=client.first()))
            if isinstance(first, Refused):
                return first
            proof = await asyncio.to_thread(client.final, first.auth_bytes)
            last = await _ask(call, pb.SaslAuthenticateRequest(auth_bytes=proof))
            if isinstance(last, Refused):
                return last
            client.check(last.auth_bytes)
        except ScramError as error:
            return Refused(ErrorCode.SASL_AUTHENTICATION_FAILED, str(error))
        finally:
            call.cancel()
        return last


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _start(channel: grpc.aio.Channel, held: Headers, timeout_s: float) -> grpc.aio.StreamStreamCall:
    return channel.stream_stream(
        _METHOD,
        request_serializer=pb.SaslAuthenticateRequest.SerializeToString,
        response_deserializer=pb.SaslAuthenticateResponse.FromString,
    )(timeout=timeout_s, metadata=held)


async def _ask(
    call: grpc.aio.StreamStreamCall, request: pb.SaslAuthenticateRequest
) -> pb.SaslAuthenticateResponse | Refused:
    await call.write(request)
    answer: pb.SaslAuthenticateResponse | None = await call.read()
    if answer is grpc.aio.EOF or answer is None:  # None: bytes that are no such message
        return Refused(ErrorCode.SASL_AUTHENTICATION_FAILED, "the other broker has ended the login without a word")
    if answer.error_code:
        return Refused(ErrorCode.SASL_AUTHENTICATION_FAILED, answer.error_message)
    return answer
