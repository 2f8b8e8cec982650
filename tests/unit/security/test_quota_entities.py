from __future__ import annotations

import pytest

from bus.descriptions import DEFAULT_NAME, QuotaEntity
from bus.security.quotas import check_entity, decode_entity, encode_entity, entity_of, find_quota, names_of

# Kafka's order, the most specific first.
PRECEDENCE = (
    QuotaEntity("alice", "loader"),
    QuotaEntity("alice", DEFAULT_NAME),
    QuotaEntity("alice"),
    QuotaEntity(DEFAULT_NAME, "loader"),
    QuotaEntity(DEFAULT_NAME, DEFAULT_NAME),
    QuotaEntity(DEFAULT_NAME),
    QuotaEntity(client_id="loader"),
    QuotaEntity(client_id=DEFAULT_NAME),
)
PAIR, USER_ONLY, CLIENT_ONLY = QuotaEntity("alice", "loader"), QuotaEntity("alice"), QuotaEntity(client_id="loader")
SHARING = (PAIR, PAIR, USER_ONLY, PAIR, PAIR, USER_ONLY, CLIENT_ONLY, CLIENT_ONLY)


@pytest.mark.parametrize("first", range(8))
def test_most_specific_quota_holds_and_names_whose_meter_it_is(first: int) -> None:
    quotas = {entity: float(place) for place, entity in enumerate(PRECEDENCE) if place >= first}
    quotas |= {QuotaEntity("bob", "loader"): 100.0, QuotaEntity("alice", "other"): 101.0, QuotaEntity("bob"): 102.0}
    assert find_quota(quotas, "alice", "loader") == (SHARING[first], float(first))


def test_caller_without_a_quota_has_none() -> None:
    assert find_quota({QuotaEntity("bob"): 1.0, QuotaEntity(client_id="x"): 1.0}, "alice", "loader") is None


def test_default_is_no_name() -> None:
    quotas = {QuotaEntity("<default>"): 1.0}
    assert find_quota(quotas, "alice", "") is None
    assert find_quota(quotas, "<default>", "") == (QuotaEntity("<default>"), 1.0)


@pytest.mark.parametrize("entity", [*PRECEDENCE, QuotaEntity("<default>", ""), QuotaEntity("ä, 'x'", None)])
def test_entity_is_read_back_as_it_was_written(entity: QuotaEntity) -> None:
    assert decode_entity(encode_entity(entity)) == entity
    assert entity_of(names_of(entity)) == entity


@pytest.mark.parametrize("text", ["", "{}", "[]", "1", '{"user": 1}', '{"ip": "::1"}', '{"user": "a", "x": null}'])
def test_text_of_no_entity_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own, too
        decode_entity(text)


def test_entity_is_shown_as_kafka_does() -> None:
    assert str(PAIR) == "user-principal 'alice', client-id 'loader'"
    assert str(QuotaEntity(DEFAULT_NAME, DEFAULT_NAME)) == "the default user-principal, the default client-id"


@pytest.mark.parametrize(
    "entity",
    [
        QuotaEntity("a\nb"),
        QuotaEntity("u" * 1025),
        QuotaEntity(client_id="c" * 256),
        QuotaEntity("a "),
        QuotaEntity("a\u200b"),
    ],
)
def test_name_that_no_caller_can_have_is_refused(entity: QuotaEntity) -> None:
    assert check_entity(entity) is not None
