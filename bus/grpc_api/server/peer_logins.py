"""How a broker logs in at others: one session for each, asked for when a call needs it and renewed in time.

Guards one promise: no call waits for the renewal of a session that still holds. Otherwise an identity provider that
hangs would hold up heartbeats until the broker is fenced.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import grpc

from bus.errors import BusError, ErrorCode, Refused
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.oauth.messages import client_response
from bus.oauth.token_sources import TokenSource
from bus.sasl import OAUTHBEARER, PLAIN
from bus.scram import SCRAM_MECHANISMS, ScramClient, ScramError

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
    """Logins of this broker at all other brokers, which `key` tells apart. `tokens`: for OAUTHBEARER, in place of the
    others."""

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
