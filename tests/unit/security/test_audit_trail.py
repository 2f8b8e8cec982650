from __future__ import annotations

from dataclasses import replace

import pytest

from bus.security import audit_trail as denials
from bus.security import audit_trail as t
from bus.security.audit_trail import ALLOWED, DENIED, TEXT_LENGTH_MAX, AuditEvent, AuditKind, check_row, encode_event

MINUTE = t.GRANT_INTERVAL_MS


def denial(time_ms: int, topic: str = "orders") -> AuditEvent:
    return AuditEvent(time_ms, AuditKind.DECISION, "User:a", operation="Write", resource=topic, decision=DENIED)


def grant(time_ms: int, topic: str = "orders", count: int = 1, principal: str = "User:a") -> AuditEvent:
    return AuditEvent(
        time_ms, AuditKind.DECISION, principal, operation="Read", resource=topic, decision=ALLOWED, count=count
    )


def test_rows_are_taken_in_order_so_many_at_a_time() -> None:
    trail = t.AuditTrail()
    events = [denial(1), denial(2), denial(3)]
    for event in events:
        trail.add(event)
    assert trail.take(2, 10) == events[:2]
    assert trail.take(2, 10) == events[2:]
    assert trail.take(2, 10) == []


def test_grants_are_a_row_a_minute_for_each_principal_operation_and_resource() -> None:
    trail = t.AuditTrail()
    for event in (grant(0), grant(5, count=3), grant(6, "other"), grant(7, principal="User:b")):
        trail.add_grant(event)
    assert trail.take(10, MINUTE - 1) == []
    assert trail.take(10, MINUTE) == [
        AuditEvent(5, AuditKind.DECISION, "User:a", operation="Read", resource="orders", decision=ALLOWED, count=4),
        grant(6, "other"),
        grant(7, principal="User:b"),
    ]
    trail.add_grant(grant(MINUTE))
    assert trail.take(10, MINUTE + 1) == []
    assert trail.take(10, MINUTE + 1, is_last=True) == [grant(MINUTE)]


def test_denials_are_rows_at_once_for_ten_names_and_then_counted_until_the_minute_is_over() -> None:
    trail = t.AuditTrail()
    for number in range(500):
        trail.add_denial(denial(number, f"t{number % 12}"))
    assert trail.take(1_000, MINUTE - 1) == [denial(number, f"t{number}") for number in range(10)]
    (counted,) = trail.take(1_000, MINUTE)
    assert counted == replace(denial(499, ""), count=490)
    trail.add_denial(denial(MINUTE, "t1"))
    trail.add_denial(denial(MINUTE + 1, "t1"))
    assert trail.take(1_000, MINUTE + 2) == [denial(MINUTE, "t1")]
    assert trail.take(1_000, MINUTE + 2, is_last=True) == [denial(MINUTE + 1, "t1")]


def test_denials_of_another_principal_or_operation_are_told_beside_a_flood() -> None:
    trail = t.AuditTrail()
    for _ in range(10):
        trail.add_denial(denial(0))
    others = [replace(denial(1), principal="User:b"), replace(denial(2), operation="Read")]
    for event in others:
        trail.add_denial(event)
    assert trail.take(9, 3) == [denial(0), *others]


def test_kinds_of_denials_are_bounded_and_those_beyond_are_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denials, "DENIAL_KINDS_MAX", 2)
    trail = t.AuditTrail()
    for name in ("a", "b", "c", "d", "a"):
        trail.add_denial(replace(denial(0), principal=f"User:{name}"))
    assert [event.principal for event in trail.take(9, 1)] == ["User:a", "User:b"]
    counted, lost = trail.take(9, MINUTE)
    assert (counted.principal, counted.kind, lost.kind, lost.count) == (
        "User:a",
        AuditKind.DECISION,
        AuditKind.GAP,
        2,
    )


def test_counts_of_denials_take_the_room_of_rows_and_cost_no_look_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    trail = t.AuditTrail()
    for _ in range(denials.NAMES_REPORTED_MAX):
        for number in range(5):
            trail.add_denial(replace(denial(0), principal=f"User:{number}"))
    assert len(trail.take(99, 1)) == 5
    monkeypatch.setattr(t, "ROWS_MAX", 4)
    monkeypatch.setattr(t, "cut", None)
    trail._rows.append(denial(2))
    assert [event.count for event in trail.take(99, MINUTE)] == [1, 9, 9, 9]
    assert trail.take(99, MINUTE) == [AuditEvent(MINUTE, AuditKind.GAP, count=2)]


def test_what_is_too_much_is_counted_in_a_row_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t, "ROWS_MAX", 2)
    monkeypatch.setattr(t, "GRANTS_MAX", 1)
    trail = t.AuditTrail()
    for number in range(5):
        trail.add(denial(number))
        trail.add_grant(grant(number, f"t{number}"))
    assert trail.take(1, 9) == [denial(0)]
    assert trail.take(9, 9) == [denial(1), AuditEvent(9, AuditKind.GAP, count=7)]
    assert trail.take(9, 9, is_last=True) == [grant(0, "t0")]


def test_rows_that_could_not_be_written_come_first_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trail = t.AuditTrail()
    trail.add(denial(1))
    taken = trail.take(9, 5)
    trail.add(denial(2))
    trail.put_back(taken)
    assert trail.take(9, 6) == [denial(1), denial(2)]


def test_rows_that_are_put_back_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t, "ROWS_MAX", 2)
    monkeypatch.setattr(t, "GRANTS_MAX", 0)
    monkeypatch.setattr(t, "CHANGES_MAX", 0)
    trail = t.AuditTrail()
    trail.add(denial(3))
    trail.put_back([denial(1), denial(2)])
    assert trail.take(1, 9) == [denial(1)]
    assert trail.take(9, 9) == [denial(2), AuditEvent(9, AuditKind.GAP, count=1)]


def test_row_has_bounded_texts_and_is_taken_from_another_broker() -> None:
    row = encode_event(denial(7, "x" * 5_000), broker_id=3)
    assert (row["time"], row["kind"], row["broker_id"]) == (7_000, "DECISION", 3)
    assert len(row["resource"]) == TEXT_LENGTH_MAX
    assert check_row(row) == row


@pytest.mark.parametrize("change", [{"time": "now"}, {"count": True}, {"principal": None}, {"more": 1}])
def test_row_of_another_form_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        check_row(encode_event(denial(7), broker_id=3) | change)


def test_long_texts_are_cut_before_they_wait() -> None:
    trail, long = t.AuditTrail(), "x" * 1_000_000
    trail.add(denial(1, long))
    trail.add_grant(grant(1, long))
    trail.add_grant(grant(2, long + "y"))
    rows = trail.take(10, MINUTE + 1)
    assert [len(row.resource) for row in rows] == [TEXT_LENGTH_MAX] * 2
    assert rows[1].count == 2


def test_denials_and_grants_crowd_out_no_change() -> None:
    trail = t.AuditTrail()
    change = AuditEvent(2, AuditKind.CHANGE, "User:a", operation="Alter", resource="orders")
    for number in range(t.GRANTS_MAX):
        trail.add_grant(grant(1, str(number)))
    for number in range(t.ROWS_MAX + 5):
        trail.add(denial(1, str(number)))
    taken = trail.take(1_000, MINUTE + 1)
    trail.put_back(taken)
    trail.add(change)
    rows = trail.take(t.ROWS_MAX + t.GRANTS_MAX + t.CHANGES_MAX, MINUTE + 2)
    assert rows[-1] == change
    for _ in range(t.ROWS_MAX + t.GRANTS_MAX + t.CHANGES_MAX + 5):
        trail.add(change)
    rows = trail.take(10**6, MINUTE + 3)
    assert len(rows) == t.ROWS_MAX + t.GRANTS_MAX + t.CHANGES_MAX


def test_changes_that_are_refused_crowd_out_none_that_was_made() -> None:
    """A caller may have any number refused, to hide what it does meanwhile."""
    trail = t.AuditTrail()
    refused = AuditEvent(1, AuditKind.CHANGE, "User:a", operation="Delete", error="GROUP_ID_NOT_FOUND: there is none")
    made = AuditEvent(2, AuditKind.CHANGE, "User:a", operation="Delete", resource="orders")
    for _ in range(t.ROWS_MAX + t.GRANTS_MAX + t.CHANGES_MAX):
        trail.add(refused, is_refused=True)
    for _ in range(t.CHANGES_MAX):
        trail.add(made)
    assert trail.take(10**6, 3) == [refused] * t.ROWS_MAX + [made] * t.CHANGES_MAX
    (gap,) = trail.take(9, 4)
    assert (gap.kind, gap.count) == (AuditKind.GAP, t.GRANTS_MAX + t.CHANGES_MAX)
