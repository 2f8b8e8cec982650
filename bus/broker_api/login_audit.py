"""Logins and their failures as rows of the audit."""

from __future__ import annotations

from bus.auditing.events import AuditEvent, AuditKind
from bus.broker_api.login_log import LoginReport


def login_event(report: LoginReport, now_ms: int) -> AuditEvent:
    """Of a failure the name is what the client claimed to be: no principal, but the user that the row is about."""
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
