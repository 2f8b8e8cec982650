"""Logins: how a caller proves who it is, and who the caller of a request is by what it shows.

Theory of operation. By SCRAM a client and the broker exchange four messages (`begin`, `ScramLogin`); the answer to the
last one has a session, an opaque token, which the client shows with each call from then on. Who shows a session of its
own while it logs in again extends it: what it holds open goes on (KIP-368). By PLAIN a client shows name and password
with each call; they are checked once, in a thread, and remembered. By OAUTHBEARER a client sends a token of an identity
provider (RFC 7628) and gets a session that ends with the token, or it sends the token itself with each call. Guards
these promises: a login holds at the listener where it was made, and at no other; a wrong password, a name that does
not exist and a name without a password for the mechanism are answered with one text, and so is every token that is
refused, no sooner than `connection.failed.authentication.delay.ms` after the request; no login blocks the event loop;
logins under way are bounded; nothing secret is in a log line or an error. `report` is called with each login and each
failure.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import collections
import contextvars
import functools
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

from bus.addresses import counted_host
from bus.broker_api.requests import Caller, Unavailable
from bus.errors import ErrorCode, Refused, show_names
from bus.ports import Clock
from bus.runtime.blocking import BlockingCalls, FairTurns
from bus.runtime.key_directory import KeyDirectory
from bus.runtime.login_table import Login, LoginTable, Proof
from bus.runtime.tasks import run_in_slices
from bus.runtime.user_directory import UserDirectory
from bus.security.audit_trail import DENIAL_INTERVAL_MS, DENIAL_KINDS_MAX, AuditEvent, AuditKind, DenialCounts
from bus.security.bearer_tokens import AcceptedToken, RejectedToken, TokenRules, UnknownKey, check_token
from bus.security.oauth.token_sources import NoToken, check_form, parse_client_response
from bus.security.scram import (
    ABSENT_MECHANISMS,
    MECHANISMS,
    OAUTHBEARER,
    PLAIN,
    SCRAM_MECHANISMS,
    SESSION_EXPIRED,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ScramServer,
    is_password_of,
    parse_client_first,
)
from bus.security.users import Users

_log = logging.getLogger(__name__)

__all__ = ["AcceptedToken", "RejectedToken", "TokenLogins"]


class TokenLogins:
    """Checks tokens of an identity provider against the keys that are known now."""

    def __init__(self, keys: KeyDirectory, rules: TokenRules, clock: Clock) -> None:
        self._keys = keys
        self._rules = rules
        self._clock = clock

    async def check(self, token: str) -> AcceptedToken | RejectedToken:
        """Waits for the provider only if the token names an unknown key."""
        try:
            check_form(token)
        except NoToken as error:
            return RejectedToken(str(error))
        found = self._check(token)
        if isinstance(found, UnknownKey):
            await self._keys.look()
            found = self._check(token)
        return RejectedToken(found.reason) if isinstance(found, UnknownKey) else found

    def _check(self, token: str) -> AcceptedToken | RejectedToken | UnknownKey:
        return check_token(token, self._keys.keys, self._rules, now_s=self._clock.now_ms() / 1000)

    def life_ms(self, accepted: AcceptedToken) -> int:
        """How long a login by it lasts from now; at least 1."""
        return max(1, int(accepted.expires_s * 1000) - self._clock.now_ms())


NAMES_COUNTED_MAX = 1_000  # of a listener, a host and a mechanism, in an interval
OTHER_NAMES = "<other names>"
OTHER_MECHANISMS = "<other mechanisms>"
_NAMES_IN_LINE_MAX = 10
_KNOWN_MECHANISMS = frozenset((*MECHANISMS, *ABSENT_MECHANISMS))


@dataclass(frozen=True, slots=True)
class LoginReport:
    """One login, or `count` failed ones. `mechanism`, `name`: as the client said it; the name is empty if it did not
    come to that. `reason`: why it failed, which the client must not learn; None: it did not fail."""

    mechanism: str
    name: str
    caller: Caller
    reason: str | None
    count: int = 1


@dataclass(slots=True)
class _Counted:
    """Failures of a listener, a host and a mechanism beyond those that were reported at once."""

    last: LoginReport
    mechanism: str  # of the kind
    names: dict[str, int]  # how many there were of each


class LoginLog:
    """The log of logins: failures at INFO, successes at DEBUG. `reports`: called with every success, and with failures
    as they are logged, some with a count.

    A failed login costs its caller `connection.failed.authentication.delay.ms`, but a caller may have hundreds under
    way, and many clients may be configured for a mechanism that their listener lacks, and retry. So ten names are
    reported at once for each listener, host and mechanism. The rest of a minute is one line, and one report for each
    name, with its count, as with denials (security/audit_trail.py). All unknown mechanisms count as one, since a caller
    can invent any number of them; a report has the mechanism cut and quoted. Guards two promises: every host is
    reported, with up to `NAMES_COUNTED_MAX` of its names in a minute, and further names are counted; and the reports of
    a minute hold the event loop for one slice at a time.
    """

    def __init__(self, reports: Sequence[Callable[[LoginReport], None]]) -> None:
        self._reports = reports
        self._failed: DenialCounts[_Counted] = DenialCounts(_merge)  # of one interval, which a timer ends

    def write(self, report: LoginReport) -> None:
        if report.reason is None:
            _log.debug("%r has logged in by %s from %s", report.name, report.mechanism, report.caller.host)
            self._report(report)
            return
        if self._failed.is_empty:
            loop, no_request = asyncio.get_running_loop(), contextvars.Context()
            loop.call_later(DENIAL_INTERVAL_MS / 1000, self._write_counts, context=no_request)
        mechanism, name = report.mechanism, show_names([report.name])
        if mechanism not in _KNOWN_MECHANISMS:
            mechanism, report = OTHER_MECHANISMS, replace(report, mechanism=repr(show_names([mechanism])))
        counted = _Counted(replace(report, name=name), mechanism, {name: 1})
        kind = report.caller.listener, counted_host(report.caller.host), mechanism
        if self._failed.add(kind, report.name, counted):
            _log.info("%s", _describe(report))
            self._report(report)

    def _report(self, report: LoginReport) -> None:
        for call in self._reports:
            call(report)

    def _write_counts(self) -> None:
        run_in_slices(self._counts_written(*self._failed.take()))

    def _counts_written(self, counted: Sequence[_Counted], lost: int) -> Iterator[None]:
        """Write them, with a pause to be made at each `yield`."""
        seconds = DENIAL_INTERVAL_MS // 1000
        for one in counted:
            _log.info(
                "%s; the last of %d by %s from there within %d s that are not shown: of %s",
                _describe(one.last),
                sum(one.names.values()),
                one.mechanism,
                seconds,
                _describe_names(one.names),
            )
            yield
            for name, count in one.names.items():
                self._report(replace(one.last, mechanism=one.mechanism, name=name, count=count))
                yield
        if lost:
            _log.info(
                "%d failed logins within %d s are not shown: of more than %d kinds", lost, seconds, DENIAL_KINDS_MAX
            )


def _merge(known: _Counted, new: _Counted) -> _Counted:
    for name, count in new.names.items():
        shown = name if name in known.names or len(known.names) < NAMES_COUNTED_MAX else OTHER_NAMES
        known.names[shown] = known.names.get(shown, 0) + count
    known.last = new.last
    return known


def _describe(failed: LoginReport) -> str:
    """A text of one line, with the name cut."""
    name = show_names([failed.name])
    return f"failed login of {name!r} by {failed.mechanism} from {failed.caller.host}: {failed.reason}"


def _describe_names(names: Mapping[str, int]) -> str:
    first = ", ".join(f"{name!r} ({count})" for name, count in islice(names.items(), _NAMES_IN_LINE_MAX))
    more = len(names) - _NAMES_IN_LINE_MAX
    return f"{first} and {more} more names" if more > 0 else first


LOGIN_SECONDS_MAX = 10.0
LOGINS_AT_ONCE_MAX = 4_096
LOGINS_AT_ONCE_OF_A_HOST_MAX = 256
LOGINS_AT_ONCE_OF_ANY_HOST = 8  # also where all together are too many
_BASIC_BYTES_MAX = 16_384
_TOKEN_BYTES = 32
_NONCE_BYTES = 24
_SESSION = "Session "  # what a header with a session begins with


@dataclass(frozen=True, slots=True)
class LoginAnswer:
    """To one message of a client. With a `session` the login is done."""

    message: bytes
    session: str = field(default="", repr=False)
    lifetime_ms: int = 0


@dataclass(frozen=True, slots=True)
class LoginSettings:
    """`lives_ms`: how long a login holds, by the name of each listener with logins and the mechanisms enabled there."""

    lives_ms: Mapping[str, Mapping[str, int]]
    failure_delay_ms: int


class LoginApi:
    """Logins of all listeners of a broker. `reports`: what is called with each login, and with failures as they are
    logged (`LoginLog`). `tokens`: by the name of each listener with OAUTHBEARER."""

    def __init__(
        self, users: UserDirectory, settings: LoginSettings, calls: BlockingCalls, tokens: Mapping[str, TokenLogins]
    ) -> None:
        self._users = users
        self._tokens = tokens
        self._settings = settings
        self._calls = calls
        self._table = LoginTable()
        self._decoy_key = secrets.token_bytes(32)
        self._turns = FairTurns(1)
        self._checking: dict[bytes, asyncio.Task[Login | None]] = {}
        self._at_once: collections.Counter[str] = collections.Counter()
        self.reports: list[Callable[[LoginReport], None]] = []
        self._log = LoginLog(self.reports)
        users.on_change(self._note_users)

    def mechanisms_at(self, listener: str) -> Sequence[str]:
        """Empty for a listener without logins."""
        return tuple(self._settings.lives_ms.get(listener, ()))

    def life_ms(self, mechanism: str, caller: Caller) -> int:
        """How long a login by a mechanism of the caller's listener holds."""
        return self._settings.lives_ms[caller.listener][mechanism]

    @property
    def users(self) -> Users:
        return self._users.users

    def _note_users(self, users: Users) -> None:
        count = self._table.check_all(users)
        if count:
            _log.info("%d logins have ended with the passwords that they were proved by", count)

    # ------------------------------------------------------------ who shows what

    async def caller_login(self, authorization: str | None, caller: Caller) -> Login | Refused:
        """Return the login of a request with this header. A refusal is SASL_AUTHENTICATION_FAILED, or
        UNSUPPORTED_SASL_MECHANISM."""
        login = None if authorization is None else self._table.find(_key_of(authorization, caller))
        if login is not None:
            return login
        mechanisms = self.mechanisms_at(caller.listener)
        names = ", ".join(mechanisms)
        if authorization is None:
            return _failed(f"this listener asks for a login: set sasl_mechanism to one of {names}")
        kind, _, shown = authorization.partition(" ")
        match kind.lower():
            case "session":
                # At once: a session that is not known is no guess at a password, and its client waits to log in again.
                return _failed(SESSION_EXPIRED)
            case "basic" if PLAIN in mechanisms:
                return await self._check_plain(authorization, shown, caller)
            case "bearer" if OAUTHBEARER in mechanisms:
                return await self._check_bearer(authorization, shown.strip(" "), caller)
            case scheme:
                mechanism = {"basic": PLAIN, "bearer": OAUTHBEARER}.get(scheme, kind)
                name = _decode_basic(shown)[0] if mechanism == PLAIN else ""
                with self.one_of(caller.host):
                    return await self._refuse_mechanism(mechanism, name, caller, mechanisms)

    async def _check_plain(self, header: str, shown: str, caller: Caller) -> Login | Refused:
        started_s = _now_s()
        name, password = _decode_basic(shown)
        key = _key_of(header, caller)
        checking = self._checking.get(key)
        if checking is None:  # many calls of a client that begins show the same
            checking = asyncio.get_running_loop().create_task(self._check_password(key, name, password, caller))
            self._checking[key] = checking
            checking.add_done_callback(functools.partial(self._note_checked, key))
        await asyncio.wait([checking])
        login = checking.result()
        if login is not None:
            return login
        with self.one_of(caller.host):
            await self.delay_failure(started_s)
        return _failed(_text_of_failure(PLAIN))

    def _note_checked(self, key: bytes, checking: asyncio.Task[Login | None]) -> None:
        del self._checking[key]
        if not checking.cancelled():
            checking.exception()  # all callers may have gone: asyncio would log an exception that was never retrieved

    async def _check_password(self, key: bytes, name: str, password: str, caller: Caller) -> Login | None:
        """Goes on if the call that asked is cancelled, and is counted and reported all the same: else a caller would
        guess without a bound, and unseen. Raises `Unavailable`."""
        with self.one_of(caller.host):
            login = await self._find_plain(key, name, password, caller)
        self.report(LoginReport(PLAIN, name, caller, None if login is not None else "unknown user or wrong password"))
        return login

    async def _find_plain(self, key: bytes, name: str, password: str, caller: Caller) -> Login | None:
        for is_again in (False, True):
            if is_again:
                before = self.users
                await self._users.look()
                if self.users is before:
                    return None
            mechanism, credential = self._any_credential(name)
            check = functools.partial(is_password_of, mechanism, credential, password)
            async with self._turns.turn(counted_host(caller.host)):
                is_right = await self._calls.log_in(check)
            if is_right and self.users.find(name, mechanism.name) is credential:
                proof = Proof(f"User:{name}", name, PLAIN, credential, mechanism.name)
                return self._take(key, proof, self.life_ms(PLAIN, caller))
        return None

    def _any_credential(self, name: str) -> tuple[ScramMechanism, ScramCredential]:
        for mechanism in SCRAM_MECHANISMS.values():
            found = self.users.find(name, mechanism.name)
            if found is not None:
                return mechanism, found
        return mechanism, self.users.decoy(mechanism, name, own_key=self._decoy_key)

    # ------------------------------------------------------------ tokens

    async def _check_bearer(self, header: str, token: str, caller: Caller) -> Login | Refused:
        """Check the token that a client sends with each call. An accepted token is remembered, not verified again."""
        with self.one_of(caller.host):
            found = await self._prove(token, caller)
        if isinstance(found, Refused):
            return found
        proof, lifetime_ms = found
        key = _key_of(header, caller)
        login = self._table.find(key)  # another call may have shown it meanwhile
        if login is None:
            login = self._take(key, proof, lifetime_ms)
            self.report(LoginReport(OAUTHBEARER, proof.name, caller, None))
        return login

    async def _begin_by_token(self, message: bytes, caller: Caller, authorization: str | None) -> LoginAnswer | Refused:
        try:
            token = parse_client_response(message)
        except NoToken as error:
            return await self.refuse(OAUTHBEARER, "", caller, str(error), _now_s())
        found = await self._prove(token, caller)
        return found if isinstance(found, Refused) else self.finish(found[0], authorization, caller, found[1])

    async def _prove(self, token: str, caller: Caller) -> tuple[Proof, int] | Refused:
        """The proof, and how long a login by it lasts, in milliseconds: no longer than the token is valid."""
        started_s = _now_s()
        tokens = self._tokens[caller.listener]
        found = await tokens.check(token)
        if not isinstance(found, AcceptedToken):
            return await self.refuse(OAUTHBEARER, found.name, caller, found.reason, started_s)
        lifetime_ms = min(self.life_ms(OAUTHBEARER, caller), tokens.life_ms(found))
        return Proof(f"User:{found.name}", found.name, OAUTHBEARER), lifetime_ms

    # ------------------------------------------------------------ SCRAM

    async def begin(
        self, mechanism_name: str, message: bytes, caller: Caller, authorization: str | None
    ) -> tuple[LoginAnswer, ScramLogin | None] | Refused:
        """The first message of a client; None: the login is done. `authorization`: the session to extend, if the client
        sends one."""
        enabled = self.mechanisms_at(caller.listener)
        if mechanism_name == OAUTHBEARER and OAUTHBEARER in enabled:
            answer = await self._begin_by_token(message, caller, authorization)
            return answer if isinstance(answer, Refused) else (answer, None)
        mechanism = SCRAM_MECHANISMS.get(mechanism_name)
        if mechanism is None or mechanism_name not in enabled:
            known = [name for name in enabled if name != PLAIN] or enabled
            return await self._refuse_mechanism(mechanism_name, "", caller, known)
        try:
            first = parse_client_first(message)
        except ScramError as error:
            return await self.refuse(mechanism_name, "", caller, str(error), _now_s())
        await self._users.look()  # also who was created, or has a new password, at another broker gets in
        credential = self.users.find(first.name, mechanism_name)
        proof = None if credential is None else _scram_proof(first.name, mechanism_name, credential)
        shown = credential or self.users.decoy(mechanism, first.name, own_key=self._decoy_key)
        server = ScramServer(mechanism, first, shown, secrets.token_urlsafe(_NONCE_BYTES))
        return LoginAnswer(server.first()), ScramLogin(self, server, first.name, proof, caller, authorization)

    def finish(
        self, proof: Proof, authorization: str | None, caller: Caller, lifetime_ms: int
    ) -> LoginAnswer | Refused:
        """After a successful proof: a new session, or the session of `authorization`, extended. If `authorization` is a
        token, a new session: a later token does not make an earlier one valid for longer."""
        session = _session_of(authorization)
        held = None if session is None else self._table.find(_session_key(session, caller))
        if session is not None and held is not None:
            if held.principal != proof.principal or held.proof.mechanism != proof.mechanism:
                return _failed(f"expected a new login as {held.principal} by {held.proof.mechanism}, as the session is")
            self._table.extend(held, proof, _now_s() + lifetime_ms / 1000)
        else:
            session = secrets.token_urlsafe(_TOKEN_BYTES)
            self._take(_session_key(session, caller), proof, lifetime_ms)
        self.report(LoginReport(proof.mechanism, proof.name, caller, None))
        return LoginAnswer(b"", session, lifetime_ms)

    def _take(self, key: bytes, proof: Proof, lifetime_ms: int) -> Login:
        login = self._table.add(key, proof, _now_s() + lifetime_ms / 1000)
        if login is None:
            raise Unavailable("too many callers are logged in at this broker; retry later")
        return login

    async def refuse(self, mechanism: str, name: str, caller: Caller, reason: str, started_s: float) -> Refused:
        """A login that has failed; `reason` is for the log alone."""
        self.report(LoginReport(mechanism, name, caller, reason))
        await self.delay_failure(started_s)
        return _failed(_text_of_failure(mechanism))

    async def _refuse_mechanism(self, mechanism: str, name: str, caller: Caller, enabled: Sequence[str]) -> Refused:
        """Refuse a login by a mechanism that the caller's listener does not have. `enabled`: those to name."""
        started_s = _now_s()
        names = ", ".join(enabled)
        report = LoginReport(mechanism, name, caller, f"listener {caller.listener} has {names}, and not this mechanism")
        self.report(report)
        await self.delay_failure(started_s)
        message = f"expected a mechanism of {names}, found {show_names([mechanism])!r}"
        return Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, message)

    async def delay_failure(self, started_s: float) -> None:
        """Wait until `connection.failed.authentication.delay.ms` after the request: the time to an answer must not
        tell an unknown user from a wrong password."""
        await asyncio.sleep(max(0.0, started_s + self._settings.failure_delay_ms / 1000 - _now_s()))

    def report(self, report: LoginReport) -> None:
        """Log a login or a failure, and pass it on to `reports` as it is logged."""
        self._log.write(report)

    @contextmanager
    def one_of(self, host: str) -> Iterator[None]:
        """Count a login that is under way. Raises `Unavailable` if there are too many."""
        host = counted_host(host)
        count = self._at_once[host]
        is_full = self._at_once.total() >= LOGINS_AT_ONCE_MAX and count >= LOGINS_AT_ONCE_OF_ANY_HOST
        if is_full or count >= LOGINS_AT_ONCE_OF_A_HOST_MAX:
            raise Unavailable("too many logins are under way at this broker; retry later")
        self._at_once[host] += 1
        try:
            yield
        finally:
            self._at_once[host] -= 1
            if not self._at_once[host]:
                del self._at_once[host]


class ScramLogin:
    """Between the first message of a client and its last. `proof`: what the right password proves; None: there is no
    such user."""

    def __init__(
        self,
        api: LoginApi,
        server: ScramServer,
        name: str,
        proof: Proof | None,
        caller: Caller,
        authorization: str | None,
    ) -> None:
        self._api = api
        self._server = server
        self._name = name
        self._proof = proof
        self._caller = caller
        self._authorization = authorization

    async def end(self, message: bytes) -> LoginAnswer | Refused:
        """The answer to the last message of a client. Raises `Unavailable`."""
        started_s = _now_s()
        proof = self._proof
        try:
            answer = self._server.check(message)
            reason = "unknown user or wrong password"
        except ScramError as error:
            answer, reason = None, str(error)
        if answer is not None and proof is not None and not proof.holds(self._api.users):
            answer, reason = None, "the password was changed meanwhile"
        if answer is None or proof is None:
            return await self._api.refuse(self._server.mechanism.name, self._name, self._caller, reason, started_s)
        lifetime_ms = self._api.life_ms(self._server.mechanism.name, self._caller)
        finished = self._api.finish(proof, self._authorization, self._caller, lifetime_ms)
        if isinstance(finished, Refused):
            return finished
        return LoginAnswer(answer, finished.session, finished.lifetime_ms)


def _scram_proof(name: str, mechanism: str, credential: ScramCredential) -> Proof:
    return Proof(f"User:{name}", name, mechanism, credential, mechanism)


def _text_of_failure(mechanism: str) -> str:
    """Kafka's words."""
    return f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"


def _failed(message: str) -> Refused:
    return Refused(ErrorCode.SASL_AUTHENTICATION_FAILED, message)


def _key_of(shown: str, caller: Caller) -> bytes:
    """Return the key of what a caller shows at its listener. A login holds where it was made, since another listener
    may ask for another mechanism, or for tokens of another identity provider."""
    return hashlib.sha256(f"{caller.listener}\0{shown}".encode("utf-8", "surrogatepass")).digest()


def _session_of(authorization: str | None) -> str | None:
    """None: the header shows none."""
    if authorization is None or not authorization.startswith(_SESSION):
        return None
    return authorization.removeprefix(_SESSION)


def _session_key(session: str, caller: Caller) -> bytes:
    return _key_of(f"{_SESSION}{session}", caller)


def _decode_basic(shown: str) -> tuple[str, str]:
    """Name and password (RFC 7617, Basic). Both are empty if they cannot be decoded."""
    if len(shown) > _BASIC_BYTES_MAX:
        return "", ""
    try:
        name, colon, password = base64.b64decode(shown, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return "", ""
    return (name, password) if colon else ("", "")


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def login_event(report: LoginReport, now_ms: int) -> AuditEvent:
    """The row of a login. That of a failure has no principal, and is about the user that the client claimed to be."""
    is_done = report.reason is None
    return AuditEvent(
        now_ms,
        AuditKind.LOGIN,
        principal=f"User:{report.name}" if is_done else "",
        host=report.caller.host,
        client_id=report.caller.client_id,
        listener=report.caller.listener,
        mechanism=report.mechanism,
        resource_type="User",
        resource=report.name,
        count=report.count,
        request_id=report.caller.request_id,
        error=report.reason or "",
    )
