"""Logins over gRPC: the exchange of SaslAuthenticate, and the caller of each call by its header `authorization`.

Guards two promises: behind a listener with logins no handler runs before its caller is known, but for what is named in
`_LOGIN` and `WITHOUT_LOGIN`; and a stream ends with the login that it was begun by, once what was read before is
answered.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from bus.broker_api.logins import LOGIN_SECONDS_MAX, LoginAnswer, LoginApi, ScramLogin
from bus.broker_api.requests import Caller
from bus.errors import ErrorCode, Refused
from bus.grpc_api.server.conversions import caller_of, with_error
from bus.grpc_api.server.guards import StreamRegistry, abort_for, stream_login
from bus.grpc_api.server.request_limits import Unreadable, UnreadableRequest
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.runtime.logs import principal
from bus.runtime.tasks import time_limit
from bus.runtime.users.login_table import Login

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
        with self._api.one_of(caller.host):
            await self._streams.run(self._authenticate(requests, context, caller), f"login/{caller.request_id}")

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
    if inspect.isasyncgenfunction(handle):

        async def answers(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            await _recognise(context, api, listener, on_known)
            async for answer in handle(request, context):
                yield answer

        return answers

    async def answer(request: Any, context: grpc.aio.ServicerContext) -> Any:
        if method != WITHOUT_LOGIN or authorization_of(context) is not None:
            await _recognise(context, api, listener, on_known)
        return await handle(request, context)

    return answer


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
