"""A login as a row of the audit."""

from __future__ import annotations

from bus.broker_api.logins import LoginReport, login_event
from bus.broker_api.requests import Caller
from bus.security.audit_trail import AuditEvent, AuditKind

CALLER = Caller("connection", "/10.0.0.1", "request", client_id="program", listener="CLIENTS")
ROW = {"host": "/10.0.0.1", "client_id": "program", "listener": "CLIENTS", "request_id": "request"}


def test_a_login_has_its_principal_and_a_failure_the_name_that_was_claimed() -> None:
    done = login_event(LoginReport("PLAIN", "alice", CALLER, None), 7)
    about = {"mechanism": "PLAIN", "resource_type": "User", "resource": "alice"}
    assert done == AuditEvent(7, AuditKind.LOGIN, principal="User:alice", **about, **ROW)
    failed = login_event(LoginReport("PLAIN", "alice", CALLER, "unknown user or wrong password"), 8)
    assert failed == AuditEvent(8, AuditKind.LOGIN, error="unknown user or wrong password", **about, **ROW)
