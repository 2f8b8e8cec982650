from __future__ import annotations

import pytest

from bus.descriptions import QuotaEntity
from bus.security import quota_usage as u
from bus.security.quota_usage import RateMeter, TokenBucket, Windows
from bus.security.quotas import CONSUMER_BYTE_RATE, CONTROLLER_MUTATION_RATE, PRODUCER_BYTE_RATE

PRODUCE = u.Allowance(PRODUCER_BYTE_RATE, QuotaEntity("alice"), 100.0)
FETCH = u.Allowance(CONSUMER_BYTE_RATE, QuotaEntity("alice"), 100.0)
CHANGE = u.Allowance(CONTROLLER_MUTATION_RATE, QuotaEntity("alice"), 2.0)


def test_idle_entity_may_use_ten_seconds_at_once_and_waits_for_what_is_above() -> None:
    meter = RateMeter(Windows())
    meter.record(1_000, 5.0)
    assert (meter.rate(5.0), meter.wait_s(100, 5.0)) == (100, 0)
    meter.record(500, 5.0)
    assert (meter.rate(5.0), meter.wait_s(100, 5.0)) == (150, 5.0)  # (150 - 100) / 100 * 10 s


def test_rate_is_over_the_time_since_the_oldest_sample_once_that_is_longer() -> None:
    meter = RateMeter(Windows(count=3, size_s=1.0))
    for second in range(4):
        meter.record(30, 0.5 + second)
    # The sample of 0.5 is three windows old and gone; the oldest one that is left began at 1.5.
    assert meter.rate(3.5) == 90 / 2
    assert meter.rate(4.4) == pytest.approx(90 / 2.9)


def test_produce_is_counted_whether_it_is_over_or_not() -> None:
    meters = u.QuotaMeters(Windows())
    assert meters.charge(PRODUCE, 1_000, 0.0) == 0
    assert meters.charge(PRODUCE, 500, 0.0) == 5.0
    assert meters.charge(PRODUCE, 500, 0.0) == 10.0


def test_fetch_that_would_be_over_is_not_counted() -> None:
    meters = u.QuotaMeters(Windows())
    assert meters.charge_unless_over(FETCH, 900, 0.0) == (0, True)
    assert meters.charge_unless_over(FETCH, 600, 0.0) == (5.0, False)
    assert meters.charge_unless_over(FETCH, 100, 0.0) == (0, True)


def test_fetch_above_the_whole_quota_comes_through_when_nothing_else_was_used() -> None:
    meters = u.QuotaMeters(Windows())
    assert meters.charge_unless_over(FETCH, 10_000, 0.0) == (90.0, True)
    assert not meters.charge_unless_over(FETCH, 1, 0.0)[1]
    assert meters.charge_unless_over(FETCH, 10_000, 12.0) == (78.0, False)  # the windows have forgotten it
    assert meters.charge_unless_over(FETCH, 1, 90.0) == (0, True)


def test_debt_lasts_as_long_as_the_wait_that_was_told_also_when_the_windows_have_forgotten_why() -> None:
    meters = u.QuotaMeters(Windows())
    assert meters.debt_s(PRODUCE, 0.0) == 0
    assert meters.charge(PRODUCE, 10_000, 0.0) == 90.0
    assert [meters.debt_s(PRODUCE, now_s) for now_s in (0.0, 30.0, 90.0)] == [90.0, 60.0, 0.0]
    assert meters.charge(PRODUCE, 10, 30.0) == 60.0  # it was under way, and makes no debt shorter
    twice = u.Allowance(PRODUCER_BYTE_RATE, PRODUCE.entity, 200.0)
    assert meters.debt_s(twice, 30.0) == 30.0


def test_entity_without_use_has_no_debt_and_gets_no_meter() -> None:
    meters = u.QuotaMeters(Windows())
    assert meters.debt_s(PRODUCE, 0.0) == 0
    assert not list(meters.usage(0.0))


def test_meters_of_one_quota_are_not_forgotten_for_those_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(u, "METERS_MAX", 2)
    meters = u.QuotaMeters(Windows())
    meters.charge(PRODUCE, 10_000, 0.0)
    for number in range(3):
        meters.charge(u.Allowance(CONSUMER_BYTE_RATE, QuotaEntity(client_id=str(number)), 1.0), 1, 0.0)
    assert meters.debt_s(PRODUCE, 0.0) == 90.0


def test_bucket_gives_all_at_first_then_the_rate_and_refuses_while_there_is_debt() -> None:
    meters = u.QuotaMeters(Windows())
    assert meters.take(CHANGE, 20, 0.0) == 0
    assert meters.take(CHANGE, 10, 0.0) == 0  # 22 were there, so there is a debt of 8
    assert meters.take(CHANGE, 1, 0.0) == 4.0
    assert meters.take(CHANGE, 1, 3.0) == 1.0
    assert meters.take(CHANGE, 1, 4.0) == 0


def test_bucket_never_has_more_than_all_windows() -> None:
    bucket = TokenBucket(Windows())
    bucket.take(5, 2.0, 0.0)
    assert bucket.used(2.0, 0.0) == 5
    assert bucket.used(2.0, 1000.0) == 0


def test_meter_that_is_idle_for_an_hour_is_forgotten() -> None:
    meters = u.QuotaMeters(Windows())
    meters.charge(PRODUCE, 1, 0.0)
    meters.charge(FETCH, 1, 3000.0)
    assert [name for name, _, _ in meters.usage(3600.0)] == [CONSUMER_BYTE_RATE]


def test_meters_are_bounded_and_the_least_lately_used_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(u, "METERS_MAX", 2)
    meters = u.QuotaMeters(Windows())
    for client_id in ("a", "b", "a", "c"):
        meters.charge(u.Allowance(PRODUCER_BYTE_RATE, QuotaEntity(client_id=client_id), 1.0), 1, 0.0)
    assert [entity.client_id for _, entity, _ in meters.usage(0.0)] == ["a", "c"]
