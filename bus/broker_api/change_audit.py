"""Changes that callers have made as rows of the audit."""

from __future__ import annotations

from bus.broker_api.requests import Caller
from bus.security.audit_events import AuditEvent, AuditKind


def change_event(
    caller: Caller,
    now_ms: int,
    *,
    call: str,
    operation: str,
    resource_type: str,
    resource: str,
    error: str = "",
    rule: str = "",
) -> AuditEvent:
    """The change of one thing. `error`: why it was not changed. `rule`: for whom a broker sends it on."""
    return AuditEvent(
        now_ms,
        AuditKind.CHANGE,
        caller.principal,
        caller.host,
        caller.client_id,
        caller.listener,
        call=call,
        operation=operation,
        resource_type=resource_type,
        resource=resource,
        rule=rule,
        request_id=caller.request_id,
        error=error,
    )
