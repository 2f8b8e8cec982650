"""Puts `SilentBrokers` to work: a thread that lives while something that was sent has no answer.

It asks another broker about those that are silent, and gives up what is under way at those that are fenced. Safe to use
from several threads; nothing is asked or given up while the lock is held.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping

from bus.client.connection.retrying import monotonic_ms
from bus.client.connection.silent_brokers import SilentBrokers
from bus.reentry import OwnCondition, OwnLock, logger_of

logger = logger_of(__name__)


class BrokerWatch:
    def __init__(self, *, ask: Callable[[], Mapping[str, bool] | None], give_up: Callable[[str], None]) -> None:
        """`ask`: by address whether a broker is fenced, as another one says; None if none answers. `give_up`: ends all
        calls and streams to an address."""
        self._ask = ask
        self._give_up = give_up
        self._machine = SilentBrokers()
        self._due = OwnCondition(OwnLock())
        self._thread: threading.Thread | None = None
        self._wakes_at_ms = math.inf
        self._is_closed = False

    def note_sent(self, address: str) -> None:
        with self._due:
            self._machine.note_sent(address, monotonic_ms())
            if self._thread is None:
                self._start()
            elif self._machine.next_event() < self._wakes_at_ms:
                self._due.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="bus-broker-watch", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # too many threads, or the interpreter shuts down: the next request tries again
            return
        self._thread = thread

    def note_answer(self, address: str) -> None:
        """Of one request."""
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
                self._look()
            except Exception:  # the thread's edge: the next request starts another one
                logger.exception("asking about a silent broker failed")
                with self._due:
                    self._machine.note_no_standing(monotonic_ms())

    def _wait_until_due(self) -> bool:
        """False: nothing is waited for any more, or this client is closed; then the thread is over."""
        with self._due:
            while not self._is_closed:
                now_ms = monotonic_ms()
                if self._machine.tick(now_ms):
                    return True
                self._wakes_at_ms = self._machine.next_event()
                if self._wakes_at_ms == math.inf:
                    break
                self._due.wait(max(0.0, self._wakes_at_ms - now_ms) / 1000)
            self._thread = None
            return False

    def _look(self) -> None:
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
