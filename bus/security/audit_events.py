"""Events of the audit: a decision about a caller, a login, a change that a caller has made, or a gap.

Guards one promise: a row that is written can be read for ever, so the meaning of a column never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from typing import Any

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
