"""Detects brokers and connections that are silent: the machines `SilentBrokers` and `SilentConnections`, and
`BrokerWatch`, which puts them to work in a thread that lives while an answer is awaited.

The thread asks another broker about those that are silent, and gives up what is under way at those that are fenced; and
it has silent connections asked, on which a call waits for long. Safe to use from several threads; nothing is asked or
given up while the lock is held.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from bus.client.connection.connections import Connection
from bus.client.connection.retrying import SILENT_AFTER_MS, monotonic_ms
from bus.errors import BusError, ErrorCode
from bus.platform.reentry import OwnCondition, OwnLock, logger_of

# Between two questions: an eighth of the silence, within these.
_PAUSE_MS_MIN = 250
_PAUSE_MS_MAX = 10_000


@dataclass(slots=True)
class _Broker:
    """`waiting > 0`: the requests without an answer. `heard_at_ms`: the last sign of life, or since when an answer is
    awaited."""

    waiting: int
    heard_at_ms: float


class SilentBrokers:
    """Detection of silent brokers, and of those among them that the cluster has fenced: a machine without threads,
    clock or I/O.

    A broker is silent when something that was sent to it has had no answer for a second, and nothing else came from it
    either. That alone decides nothing: a broker may be busy, a long poll is meant to wait, and a request that was sent
    may have had its effect. So another broker is asked, again and again while the silence lasts. Guards two promises:
    only a broker that the cluster has fenced is given up, so never one that is slow; and what is under way at a fenced
    one is given up soon after the cluster has fenced it, long before its own time-out. `now_ms` are milliseconds of one
    clock that never goes back; addresses are those that brokers advertise.
    """

    def __init__(self) -> None:
        self._brokers: dict[str, _Broker] = {}
        self._given_up: set[str] = set()  # and not heard of again
        self._is_asking = False
        self._questioned_at_ms = -math.inf

    # ------------------------------------------------------------ what happens to requests

    def note_sent(self, address: str, now_ms: float) -> None:
        broker = self._brokers.get(address)
        if broker is None:
            self._brokers[address] = _Broker(1, now_ms)
        else:
            broker.waiting += 1

    def note_heard(self, address: str, now_ms: float) -> None:
        """A sign of life."""
        self._given_up.discard(address)
        broker = self._brokers.get(address)
        if broker is not None:
            broker.heard_at_ms = now_ms

    def note_settled(self, address: str, count: int = 1) -> None:
        """So many requests have had an answer, or are not waited for any more."""
        broker = self._brokers.get(address)
        if broker is not None:
            broker.waiting -= count
            if broker.waiting <= 0:
                del self._brokers[address]

    def note_live(self, addresses: Iterable[str]) -> None:
        """A broker says that these are not fenced."""
        self._given_up.difference_update(addresses)

    # ------------------------------------------------------------ questions

    def is_avoided(self, address: str, now_ms: float) -> bool:
        """Ask others first, if there are any."""
        return address in self._given_up or self._is_silent(address, now_ms)

    def _is_silent(self, address: str, now_ms: float) -> bool:
        broker = self._brokers.get(address)
        return broker is not None and now_ms - broker.heard_at_ms >= SILENT_AFTER_MS

    def next_event(self) -> float:
        """When `tick` may have something to do without any other event; infinity while nothing is waited for."""
        if self._is_asking:
            return math.inf
        return min((self._due_ms(broker) for broker in self._brokers.values()), default=math.inf)

    def _due_ms(self, broker: _Broker) -> float:
        silence_ms = self._questioned_at_ms - broker.heard_at_ms
        pause_ms = min(max(silence_ms / 8, _PAUSE_MS_MIN), _PAUSE_MS_MAX)
        return max(broker.heard_at_ms + SILENT_AFTER_MS, self._questioned_at_ms + pause_ms)

    # ------------------------------------------------------------ time and answers

    def tick(self, now_ms: float) -> bool:
        """True if a broker is to be asked now which brokers are fenced; `note_standing`, or `note_no_standing`,
        follows."""
        if now_ms < self.next_event():
            return False
        self._is_asking = True
        return True

    def note_standing(self, is_fenced: Mapping[str, bool], now_ms: float) -> list[str]:
        """Note another broker's answer, by address. Returns the brokers to give up: all calls under way there."""
        self._is_asking, self._questioned_at_ms = False, now_ms
        self.note_live(address for address, fenced in is_fenced.items() if not fenced)
        found = [address for address in self._brokers if self._is_silent(address, now_ms) and is_fenced.get(address)]
        for address in found:
            self._given_up.add(address)
            self._brokers[address].heard_at_ms = now_ms  # later calls have their own time
        return found

    def note_no_standing(self, now_ms: float) -> None:
        """No other broker answered."""
        self._is_asking, self._questioned_at_ms = False, now_ms


class Heard(Protocol):
    @property
    def heard_at_ms(self) -> float:
        """When something came on it last, or when it was made."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=Heard)


@dataclass(frozen=True, slots=True, eq=False)
class PatientCall(Generic[ConnectionT]):
    """A call whose answer may take long. `patience_ms`: how long its connection may be silent before it is asked, and
    how long the question has."""

    connection: ConnectionT
    patience_ms: float
    begun_at_ms: float
    give_up: Callable[[], object]


@dataclass(slots=True)
class _Waiting(Generic[ConnectionT]):
    """The calls that wait on one connection; there is one at least."""

    calls: set[PatientCall[ConnectionT]] = field(default_factory=set)
    asked_at_ms: float = -math.inf
    is_asking: bool = False

    def due_ms(self, heard_at_ms: float) -> float:
        if self.is_asking:
            return math.inf
        return min(max(heard_at_ms, self.asked_at_ms, call.begun_at_ms) + call.patience_ms for call in self.calls)


class SilentConnections(Generic[ConnectionT]):
    """Connections on which nothing comes any more while a call waits there, one whose answer may take minutes: a
    machine without threads, clock or I/O.

    A join waits for the other members of its group, and maintenance for its work, so that they are silent says
    nothing of the connection; and a network that has forgotten it swallows their answers without a word. So after a
    silence a small question goes out on the same connection, again and again while the silence lasts. Guards two
    promises: a call is given up only where that question had no answer either, so never because its own answer takes
    long; and where nothing comes any more it is given up within twice the longest patience of a call on its
    connection. `now_ms` are milliseconds of one clock that never goes back.
    """

    def __init__(self) -> None:
        self._waiting: dict[ConnectionT, _Waiting[ConnectionT]] = {}

    def begin(
        self, connection: ConnectionT, patience_ms: float, give_up: Callable[[], object], now_ms: float
    ) -> PatientCall[ConnectionT]:
        """A call waits on the connection from now on, until `end`."""
        call = PatientCall(connection, patience_ms, now_ms, give_up)
        self._waiting.setdefault(connection, _Waiting()).calls.add(call)
        return call

    def end(self, call: PatientCall[ConnectionT]) -> None:
        """It has its answer, or is not waited for any more. Safe to repeat."""
        waiting = self._waiting.get(call.connection)
        if waiting is not None:
            waiting.calls.discard(call)
            if not waiting.calls:
                del self._waiting[call.connection]

    def next_event(self) -> float:
        """When `tick` may have something to do; infinity while it has not, without any other event."""
        return min(
            (waiting.due_ms(connection.heard_at_ms) for connection, waiting in self._waiting.items()),
            default=math.inf,
        )

    def tick(self, now_ms: float) -> list[tuple[ConnectionT, float]]:
        """The connections on which a question is to be sent now, and how long each may take; `note_settled` or
        `note_unanswered` follows for each."""
        found = []
        for connection, waiting in self._waiting.items():
            if now_ms >= waiting.due_ms(connection.heard_at_ms):
                waiting.asked_at_ms, waiting.is_asking = now_ms, True
                found.append((connection, min(call.patience_ms for call in waiting.calls)))
        return found

    def note_settled(self, connection: ConnectionT) -> None:
        """The question was answered, or could not be asked: then the connection is broken, and its calls end by
        themselves."""
        waiting = self._waiting.get(connection)
        if waiting is not None:
            waiting.is_asking = False

    def note_unanswered(self, connection: ConnectionT) -> list[PatientCall[ConnectionT]]:
        """Nothing came in time: returns the calls to be given up, which have ended here."""
        waiting = self._waiting.get(connection)
        if waiting is None:
            return []
        waiting.is_asking = False
        if connection.heard_at_ms >= waiting.asked_at_ms:
            return []
        del self._waiting[connection]
        return list(waiting.calls)


logger = logger_of(__name__)


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class BrokerWatch:
    def __init__(
        self,
        *,
        ask: Callable[[], Mapping[str, bool] | None],
        give_up: Callable[[str], None],
        ask_on: Callable[[Connection, float], None],
    ) -> None:
        """`ask`: by address whether a broker is fenced, as another one says; None if none answers. `give_up`: ends all
        calls and streams to an address. `ask_on`: begins a question on a connection, with a time-out in ms;
        `note_asked` follows."""
        self._ask = ask
        self._give_up = give_up
        self._ask_on = ask_on
        self._machine = SilentBrokers()
        self._connections: SilentConnections[Connection] = SilentConnections()
        self._due = OwnCondition(OwnLock())
        self._thread: threading.Thread | None = None
        self._wakes_at_ms = math.inf
        self._is_closed = False

    def note_sent(self, address: str) -> None:
        with self._due:
            self._machine.note_sent(address, monotonic_ms())
            self._wake(self._machine.next_event())

    def _wake(self, due_ms: float) -> None:
        if due_ms == math.inf:
            return
        if self._thread is None:
            self._start()
        elif due_ms < self._wakes_at_ms:
            self._due.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="bus-broker-watch", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # too many threads, or the interpreter shuts down: the next request tries again
            return
        self._thread = thread

    def note_answer(self, address: str) -> None:
        """Note the answer to one request."""
        with self._due:
            self._machine.note_heard(address, monotonic_ms())
            self._machine.note_settled(address)

    def note_heard(self, address: str) -> None:
        with self._due:
            self._machine.note_heard(address, monotonic_ms())

    def note_settled(self, address: str, count: int = 1) -> None:
        """Without an answer."""
        with self._due:
            self._machine.note_settled(address, count)

    def note_live(self, addresses: Iterable[str]) -> None:
        with self._due:
            self._machine.note_live(addresses)

    def begin_patient(
        self, connection: Connection, patience_ms: float, give_up: Callable[[], object]
    ) -> PatientCall[Connection]:
        """A call waits on the connection for an answer that may take long, until `end_patient`. It is given up where
        nothing comes on the connection any more."""
        with self._due:
            call = self._connections.begin(connection, patience_ms, give_up, monotonic_ms())
            self._wake(self._connections.next_event())
            return call

    def end_patient(self, call: PatientCall[Connection]) -> None:
        with self._due:
            self._connections.end(call)

    def note_asked(self, connection: Connection, *, is_late: bool) -> None:
        """The question that was asked on it has ended. `is_late`: nothing came in time."""
        given_up: list[PatientCall[Connection]] = []
        with self._due:
            if is_late:
                given_up = self._connections.note_unanswered(connection)
            else:
                self._connections.note_settled(connection)
            self._wake(self._next_event())
        if given_up:
            logger.info("nothing comes on a connection to the broker at %s: another one is used", connection.address)
        for call in given_up:
            call.give_up()

    def likeliest_first(self, addresses: Iterable[str]) -> list[str]:
        """Those from which an answer is to be expected before the others, each in the order given."""
        with self._due:
            now_ms = monotonic_ms()
            return sorted(addresses, key=lambda address: self._machine.is_avoided(address, now_ms))

    def is_avoided(self, address: str) -> bool:
        with self._due:
            return self._machine.is_avoided(address, monotonic_ms())

    def close(self) -> None:
        with self._due:
            self._is_closed = True
            self._due.notify()

    def _run(self) -> None:
        while self._wait_until_due():
            try:
                self._ask_on_silent()
                self._ask_about_silent()
            except Exception:  # the thread's edge: the next request starts another one
                logger.exception("asking about a silent broker failed")
                with self._due:
                    self._machine.note_no_standing(monotonic_ms())

    def _wait_until_due(self) -> bool:
        """False: nothing is waited for any more, or this client is closed; then the thread is over."""
        with self._due:
            while not self._is_closed:
                now_ms = monotonic_ms()
                self._wakes_at_ms = self._next_event()
                if now_ms >= self._wakes_at_ms:
                    return True
                if self._wakes_at_ms == math.inf:
                    break
                self._due.wait(max(0.0, self._wakes_at_ms - now_ms) / 1000)
            self._thread = None
            return False

    def _next_event(self) -> float:
        return min(self._machine.next_event(), self._connections.next_event())

    def _ask_on_silent(self) -> None:
        with self._due:
            silent = self._connections.tick(monotonic_ms())
        for connection, timeout_ms in silent:
            try:
                self._ask_on(connection, timeout_ms)
            except Exception:  # such as that no thread can be started: the next question may succeed
                logger.exception("asking on a silent connection to the broker at %s failed", connection.address)
                self.note_asked(connection, is_late=False)

    def _ask_about_silent(self) -> None:
        with self._due:
            if not self._machine.tick(monotonic_ms()):
                return
        is_fenced = self._ask()
        with self._due:
            now_ms = monotonic_ms()
            if is_fenced is None:
                self._machine.note_no_standing(now_ms)
                return
            given_up = self._machine.note_standing(is_fenced, now_ms)
        for address in given_up:
            logger.warning("the broker at %s is silent, and the cluster has fenced it: others are asked", address)
            self._give_up(address)


class PatientWait:
    """The wait for a call whose answer may take long, from its start until `end`. The call is cancelled where nothing
    comes on its connection any more. `patience_ms` None: an ordinary call, which its time-out ends."""

    def __init__(self, watch: BrokerWatch, connection: Connection, patience_ms: float | None, call: Cancellable):
        self._watch = watch
        self._address = connection.address
        self._call = call
        self._is_given_up = False
        self._patient = (
            None if patience_ms is None else watch.begin_patient(connection, patience_ms, give_up=self._give_up)
        )

    def _give_up(self) -> None:
        self._is_given_up = True
        self._call.cancel()

    def end(self) -> None:
        if self._patient is not None:
            self._watch.end_patient(self._patient)

    def error(self, what: str) -> BusError | None:
        """Return why it was cancelled, if that was done here."""
        if not self._is_given_up:
            return None
        found = "nothing comes on its connection any more, a question neither"
        return BusError(ErrorCode.REQUEST_TIMED_OUT, f"{what} at {self._address}: {found}")
