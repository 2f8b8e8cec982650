"""Events of the audit, and their way into the log. Time is an argument, in milliseconds.

Guards four promises: a row that is written can be read for ever, so the meaning of a column never changes; memory is
bounded, also where names are long; events that do not fit are counted in a `GAP` row; nothing here waits. Allowed reads
and writes may be thousands a second, so they are counted: one row a minute for each (principal, operation, resource).
Denials that repeat are counted, too (`DenialCounts`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from typing import Any, Generic, TypeVar

ValueT = TypeVar("ValueT")

DENIAL_INTERVAL_MS = 60_000
DENIAL_KINDS_MAX = 10_000
NAMES_REPORTED_MAX = 10  # for each kind

DenialKind = tuple[str, str, str]  # principal, operation, type of the resource


class DenialCounts(Generic[ValueT]):
    """Counts denials that repeat, so that a principal without permissions floods neither the log nor the audit.

    Guards two promises: of each principal, operation and resource type the first denial of each of the first
    `NAMES_REPORTED_MAX` names in an interval is reported at once; and all others are counted. Memory is bounded:
    names are kept as hashes. Knows no time: an interval ends with `take`.
    """

    def __init__(self, merge: Callable[[ValueT, ValueT], ValueT]) -> None:
        """`merge`: joins the value counted so far and the next one."""
        self._merge = merge
        self._reported: dict[DenialKind, set[int]] = {}  # hashes of names
        self._counted: dict[DenialKind, ValueT] = {}  # kinds that are in `_reported`
        self._lost = 0

    def add(self, kind: DenialKind, name: str, value: ValueT) -> bool:
        """True: report it at once. False: it was counted. `name`: of the resource."""
        reported = self._reported.get(kind)
        if reported is None:
            if len(self._reported) >= DENIAL_KINDS_MAX:
                self._lost += 1
                return False
            reported = self._reported[kind] = set()
        if len(reported) < NAMES_REPORTED_MAX and hash(name) not in reported:
            reported.add(hash(name))
            return True
        known = self._counted.get(kind)
        self._counted[kind] = value if known is None else self._merge(known, value)
        return False

    @property
    def is_empty(self) -> bool:
        return not self._reported

    def take(self) -> tuple[list[ValueT], int]:
        """End the interval. Returns the counted denials, one value for each kind, and the number of denials that were
        not counted because there were too many kinds."""
        counted, lost = list(self._counted.values()), self._lost
        self._reported.clear()
        self._counted.clear()
        self._lost = 0
        return counted, lost


TEXT_LENGTH_MAX = 1_024  # for each text of a row; callers choose names of topics, groups and themselves


class AuditKind(str, Enum):
    DECISION = "DECISION"  # a caller may do something, or may not
    LOGIN = "LOGIN"  # a caller has shown who it is, or has failed to
    CHANGE = "CHANGE"  # a caller has changed something, or was refused
    GAP = "GAP"  # `count` rows were not kept, as there were too many


ALLOWED, DENIED = "ALLOWED", "DENIED"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One row. Texts are empty where they make no sense. Of grants and denials that are counted, `time_ms` is the last
    one's, and the host, the client id and the request are the first one's."""

    time_ms: int
    kind: AuditKind
    principal: str = ""
    host: str = ""
    client_id: str = ""
    listener: str = ""
    mechanism: str = ""  # only for a login
    call: str = ""  # the call's name in the contract
    operation: str = ""  # Read, Write, Create ... as in ACLs
    resource_type: str = ""  # Topic, Group, Cluster, TransactionalId, User, ClientQuota
    resource: str = ""
    decision: str = ""  # ALLOWED or DENIED
    rule: str = ""  # the rule that decided; for a change that another broker forwarded, the caller there
    count: int = 1
    request_id: str = ""
    error: str = ""  # why the change, or the login, failed


def cut(event: AuditEvent) -> AuditEvent:
    """The event with texts of `TEXT_LENGTH_MAX` at most."""
    texts = (event.principal, event.host, event.client_id, event.resource, event.rule, event.error)
    if max(map(len, texts)) <= TEXT_LENGTH_MAX:
        return event
    long = {name: value[:TEXT_LENGTH_MAX] for name, value in asdict(event).items() if type(value) is str}
    return replace(event, **long)  # type: ignore[arg-type]


def encode_event(event: AuditEvent, *, broker_id: int) -> dict[str, Any]:
    """Encode the event as a row's value; `time` is in microseconds."""
    values = asdict(event)
    row = {name: value[:TEXT_LENGTH_MAX] if isinstance(value, str) else value for name, value in values.items()}
    row["kind"], row["time"], row["broker_id"] = event.kind.value, row.pop("time_ms") * 1000, broker_id
    return row


_TYPES: Mapping[str, type] = {
    **{one.name: str for one in fields(AuditEvent)},
    **dict.fromkeys(("time", "count", "broker_id"), int),
}
_NAMES = _TYPES.keys() - {"time_ms"}


def check_row(row: Any) -> dict[str, Any]:
    """A row as another broker sent it. Raises `ValueError` for anything else."""
    if not isinstance(row, dict) or row.keys() != _NAMES:
        raise ValueError(f"expected a row of the audit with the fields {', '.join(sorted(_NAMES))}")
    for name, value in row.items():
        if type(value) is not _TYPES[name]:
            raise ValueError(f"expected {_TYPES[name].__name__} in the field {name}, found {value!r}")
    return row


ROWS_MAX = 10_000
GRANTS_MAX = 10_000  # that are counted at once
CHANGES_MAX = 2_000  # rows about changes that are kept beside the other rows
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
        """Add a row of its own, or count it with others if it repeats."""
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
