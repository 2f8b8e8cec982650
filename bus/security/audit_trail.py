"""Rows of the audit on their way into the log. Time is an argument, in milliseconds.

Guards three promises: memory is bounded, also where names are long; events that do not fit are counted in a `GAP` row;
nothing here waits. Allowed reads and writes may be thousands a second, so they are counted: one row a minute for each
(principal, operation, resource). Denials that repeat are counted, too (audited_denials.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from bus.security.audit_events import AuditEvent, AuditKind, cut
from bus.security.audited_denials import DENIAL_INTERVAL_MS, DenialCounts

ROWS_MAX = 10_000
GRANTS_MAX = 10_000  # that are counted at once
CHANGES_MAX = 2_000  # rows about changes that are kept beside so many others
GRANT_INTERVAL_MS = 60_000

_Grant = tuple[str, str, str, str]  # principal, operation, type and name of the resource


class AuditTrail:
    def __init__(self) -> None:
        self._rows: deque[AuditEvent] = deque()
        self._grants: dict[_Grant, AuditEvent] = {}  # the first event of each grant, with the count of all
        self._grants_since_ms: int | None = None  # None: there are none
        self._denials: DenialCounts[AuditEvent] = DenialCounts(_merge)
        self._denials_since_ms: int | None = None  # None: there are none
        self._lost = 0

    def add_denial(self, event: AuditEvent) -> None:
        """A row of its own, or counted with others if it repeats (audited_denials.py)."""
        event = cut(event)
        if self._denials_since_ms is None:
            self._denials_since_ms = event.time_ms
        if self._denials.add((event.principal, event.operation, event.resource_type), event.resource, event):
            self.add(event)

    def add(self, event: AuditEvent, *, is_refused: bool = False) -> None:
        """A row of its own. Failed logins, denials and changes of which nothing was done (`is_refused`) may be any
        number; they take no room that is kept for changes."""
        is_change = event.kind is AuditKind.CHANGE and not is_refused
        if len(self._rows) >= (ROWS_MAX + GRANTS_MAX + CHANGES_MAX if is_change else ROWS_MAX):
            self._lost += 1
        else:
            self._rows.append(cut(event))

    def add_grant(self, event: AuditEvent) -> None:
        """One of many, which is counted."""
        event = cut(event)
        key = event.principal, event.operation, event.resource_type, event.resource
        known = self._grants.get(key)
        if known is not None:
            self._grants[key] = replace(known, time_ms=event.time_ms, count=known.count + event.count)
        elif len(self._grants) >= GRANTS_MAX:
            self._lost += 1
        else:
            self._grants[key] = event
            if self._grants_since_ms is None:
                self._grants_since_ms = event.time_ms

    def take(self, count_max: int, now_ms: int, *, is_last: bool = False) -> list[AuditEvent]:
        """Return the rows to write now, the oldest first. `is_last`: do not wait for more events to count, because
        there will be none."""
        self._end_counting_denials(now_ms, is_last=is_last)
        if self._lost and len(self._rows) < ROWS_MAX:
            self._rows.append(AuditEvent(now_ms, AuditKind.GAP, count=self._lost))
            self._lost = 0
        since_ms = self._grants_since_ms
        if since_ms is not None and (is_last or not 0 <= now_ms - since_ms < GRANT_INTERVAL_MS):
            self._rows.extend(self._grants.values())  # their number is bounded
            self._grants.clear()
            self._grants_since_ms = None
        return [self._rows.popleft() for _ in range(min(count_max, len(self._rows)))]

    def _end_counting_denials(self, now_ms: int, *, is_last: bool) -> None:
        since_ms = self._denials_since_ms
        if since_ms is None or (0 <= now_ms - since_ms < DENIAL_INTERVAL_MS and not is_last):
            return
        counted, lost = self._denials.take()
        self._denials_since_ms = None
        # All at once, and so without a look at each: they may be ten thousand, and were cut when they came.
        room = max(0, ROWS_MAX - len(self._rows))
        self._rows.extend(counted[:room])
        self._lost += lost + len(counted[room:])

    def put_back(self, events: Sequence[AuditEvent]) -> None:
        """They could not be written; of too many the newest are given up."""
        self._rows.extendleft(reversed(events))
        while len(self._rows) > ROWS_MAX + GRANTS_MAX + CHANGES_MAX:
            self._rows.pop()
            self._lost += 1


def _merge(known: AuditEvent, event: AuditEvent) -> AuditEvent:
    """One row for both: resource, call and rule are empty where they differ."""
    return replace(
        known,
        time_ms=event.time_ms,
        count=known.count + event.count,
        resource=known.resource if known.resource == event.resource else "",
        call=known.call if known.call == event.call else "",
        rule=known.rule if known.rule == event.rule else "",
    )
