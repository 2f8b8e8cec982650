"""Logins and their failures as rows of the audit."""

from __future__ import annotations

from bus.broker_api.logins import LoginReport
from bus.security.audit_trail import AuditEvent, AuditKind


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
