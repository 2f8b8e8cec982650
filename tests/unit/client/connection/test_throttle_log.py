"""A client that is held for its quota says so in the log, and not with every answer."""

import pytest

from bus.client.connection.produce_requests import ThrottleLog


def test_the_first_long_throttle_of_a_minute_is_logged_with_client_broker_time_and_quota(
    caplog: pytest.LogCaptureFixture,
) -> None:
    throttles = ThrottleLog("loader", "producer_byte_rate")
    throttles.note(20_000, "a:1", now_ms=5.0)
    throttles.note(20_000, "b:1", now_ms=60_004.0)
    (said,) = caplog.messages
    assert said.startswith("loader is throttled by the broker at a:1 for 20000 ms by the quota producer_byte_rate ")
    throttles.note(1_500, "b:1", now_ms=60_005.0)
    assert "b:1 for 1500 ms" in caplog.messages[1]


def test_a_client_that_is_just_at_its_quota_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    throttles = ThrottleLog("loader", "producer_byte_rate")
    for second in range(300):
        throttles.note(999, "a:1", now_ms=second * 1000.0)
    assert caplog.messages == []
