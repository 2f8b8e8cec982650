"""Detection of silent brokers, and of those among them that the cluster has fenced: a machine without threads, clock or
I/O.

A broker is silent when something that was sent to it has had no answer for a second, and nothing else came from it
either. That alone decides nothing: a broker may be busy, a long poll is meant to wait, and a request that was sent may
have had its effect. So another broker is asked, again and again while the silence lasts. Guards two promises: only a
broker that the cluster has fenced is given up, so never one that is slow; and what is under way at a fenced one is
given up soon after the cluster has fenced it, long before its own time-out. `now_ms` are milliseconds of one clock
that never goes back; addresses are those that brokers advertise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Half of broker.session.timeout.ms, so that another broker is being asked by the time it can know.
SILENT_AFTER_MS = 1_000
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
