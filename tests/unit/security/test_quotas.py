from __future__ import annotations

import pytest

from bus.descriptions import ANY_NAME, DEFAULT_NAME, QuotaEntity
from bus.errors import ErrorCode, Refused
from bus.security import quotas as q

ALICE = QuotaEntity("alice")


def test_changes_are_applied_to_what_the_entity_has() -> None:
    known = {ALICE: {q.PRODUCER_BYTE_RATE: 5.0, q.REQUEST_RATE: 1.0}}
    changes = {q.PRODUCER_BYTE_RATE: 7.0, q.REQUEST_RATE: None, q.CONSUMER_BYTE_RATE: None}
    assert q.alter_quotas(known, q.AlterQuotas(ALICE, changes)) == {q.PRODUCER_BYTE_RATE: 7.0}
    assert known == {ALICE: {q.PRODUCER_BYTE_RATE: 5.0, q.REQUEST_RATE: 1.0}}


@pytest.mark.parametrize(
    ("name", "limit", "found"),
    [
        ("request_percentage", 50.0, "request_rate limits requests per second"),
        ("connection_creation_rate", None, "gRPC does not show"),
        ("bytes", 1.0, "expected a quota among producer_byte_rate, consumer_byte_rate, controller_mutation_rate"),
        ("producr_byte_rate", 1.0, "found producr_byte_rate; did you mean producer_byte_rate?"),
        ("producer-byte-rate", None, "; did you mean producer_byte_rate?"),
        (q.PRODUCER_BYTE_RATE, 0.0, "expected a number above 0"),
        (q.PRODUCER_BYTE_RATE, 1.5, "expected whole bytes per second, found 1.5"),
        (q.CONSUMER_BYTE_RATE, float("inf"), "up to 2^53, found inf"),
        (q.REQUEST_RATE, float("nan"), "found nan"),
        (q.CONTROLLER_MUTATION_RATE, -1.0, "found -1.0"),
    ],
)
def test_quota_without_an_effect_is_refused_with_the_reason(name: str, limit: float | None, found: str) -> None:
    answer = q.alter_quotas({}, q.AlterQuotas(ALICE, {q.REQUEST_RATE: 1.0, name: limit}))
    assert isinstance(answer, Refused)
    assert answer.code is ErrorCode.INVALID_REQUEST
    assert found in answer.message


def test_entities_are_bounded_and_those_that_are_there_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(q, "ENTITIES_MAX", 1)
    known = {ALICE: {q.REQUEST_RATE: 1.0}}
    assert q.alter_quotas(known, q.AlterQuotas(ALICE, {q.REQUEST_RATE: 2.0})) == {q.REQUEST_RATE: 2.0}
    answer = q.alter_quotas(known, q.AlterQuotas(QuotaEntity("bob"), {q.REQUEST_RATE: 2.0}))
    assert isinstance(answer, Refused)
    assert answer.code is ErrorCode.POLICY_VIOLATION


def test_quotas_are_read_back_as_they_were_written() -> None:
    quotas = {q.PRODUCER_BYTE_RATE: 2.0**53, q.REQUEST_RATE: 0.1, "of_a_later_version": 3.0}
    assert q.decode_quotas(q.encode_quotas(quotas)) == quotas


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"a": "1"}', '{"a": true}', '{"a": NaN}', '{"a": 0}'])
def test_text_of_no_quotas_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own, too
        q.decode_quotas(text)


def test_filter_names_parts_that_an_entity_has() -> None:
    pair, default = QuotaEntity("alice", "loader"), QuotaEntity(DEFAULT_NAME)
    assert q.matches(pair, {"user": "alice"}, is_strict=False)
    assert not q.matches(pair, {"user": "alice"}, is_strict=True)
    assert q.matches(pair, {"user": ANY_NAME, "client-id": "loader"}, is_strict=True)
    assert not q.matches(pair, {"user": DEFAULT_NAME}, is_strict=False)
    assert q.matches(default, {"user": DEFAULT_NAME}, is_strict=True)
    assert q.matches(default, {"user": ANY_NAME}, is_strict=True)
    assert not q.matches(default, {"client-id": ANY_NAME}, is_strict=False)
    assert q.matches(default, {}, is_strict=False)
    assert not q.matches(default, {}, is_strict=True)
