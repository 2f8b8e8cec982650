from __future__ import annotations

import math

import pytest

from bus.client.config.clients import ConsumerConfig
from bus.client.consumer.assigned_partition import AssignedPartition
from bus.client.consumer.metrics import ConsumerMetrics
from bus.model import TopicPartition

T0 = TopicPartition("t", 0)


def assigned(position: int | None, high_watermark: int | None, log_start: int = 0) -> AssignedPartition:
    partition = AssignedPartition(T0)
    if position is not None:
        partition.seek(position)
    partition.high_watermark, partition.log_start = high_watermark, log_start
    return partition


def metrics(*partitions: AssignedPartition) -> ConsumerMetrics:
    return ConsumerMetrics(ConsumerConfig(), lambda: list(partitions))


def test_lag_and_lead_are_those_of_now_and_of_the_recent_past() -> None:
    partition = assigned(10, 100, log_start=4)
    measured = metrics(partition)
    measured.record_position(partition, 1_000)
    partition.seek(40)
    measured.record_position(partition, 2_000)
    partition.seek(70)
    assert measured.partition_snapshot(3_000) == {
        T0: {
            "records-lag": 30,
            "records-lag-avg": 75,
            "records-lag-max": 90,
            "records-lead": 66,
            "records-lead-avg": 21,
            "records-lead-min": 6,
            "preferred-read-replica": -1,
        }
    }
    values = measured.snapshot(3_000)
    assert (values["records-lag-max"], values["records-lead-min"], values["t-0.records-lag"]) == (30, 66, 30)
    assert measured.partition_snapshot(100_000)[T0]["records-lag"] == 30
    assert math.isnan(measured.partition_snapshot(100_000)[T0]["records-lag-avg"])


def test_what_was_not_measured_is_nan_and_a_lag_of_nothing_is_not_there() -> None:
    values = metrics(assigned(None, None)).snapshot(1_000)
    assert values["assigned-partitions"] == 1
    for name in ("records-lag-max", "records-lead-min", "fetch-latency-avg", "heartbeat-response-time-max"):
        assert math.isnan(values[name]), name
    assert "t-0.records-lag" not in values


def test_fetches_count_by_topic() -> None:
    measured = metrics()
    measured.record_fetch({"t": (1_000, 10), "u": (500, 1)}, latency_ms=200, throttle_ms=7, now_ms=1_000)
    measured.record_fetch({"t": (0, 0)}, latency_ms=400, throttle_ms=0, now_ms=2_000)
    values = measured.snapshot(2_000)
    assert (values["fetch-total"], values["bytes-consumed-total"]) == (2, 1_500)
    assert (values["fetch-latency-avg"], values["fetch-latency-max"]) == (pytest.approx(300), pytest.approx(400))
    assert (values["fetch-size-max"], values["records-per-request-avg"]) == (1_500, 5.5)
    assert values["fetch-throttle-time-max"] == 7
    topics = measured.topic_snapshot(2_000)
    assert (topics["t"]["bytes-consumed-total"], topics["u"]["fetch-size-avg"]) == (1_000, 500)


def test_records_count_when_they_are_given_and_rates_with_the_next_poll() -> None:
    measured = metrics()
    measured.begin_poll(1_000)
    measured.count_given("t", 3)
    assert measured.snapshot(1_000)["records-consumed-total"] == 3
    measured.begin_poll(2_000)
    values = measured.snapshot(31_000)
    assert values["records-consumed-total"] == 3
    assert values["records-consumed-rate"] > 0


def test_polls_tell_how_long_the_program_stays_away() -> None:
    measured = metrics()
    measured.begin_poll(1_000)
    measured.end_poll(1_200)
    measured.begin_poll(2_000)
    values = measured.snapshot(2_000)
    assert (values["time-between-poll-avg"], values["poll-idle-ratio-avg"]) == (
        pytest.approx(1_000),
        pytest.approx(0.2),
    )


def test_rebalances_and_calls_to_the_coordinator_count() -> None:
    measured = metrics()
    for method, ms in (("Heartbeat", 100), ("JoinGroup", 200), ("SyncGroup", 300), ("LeaveGroup", 9_000)):
        measured.record_group_call(method, ms, 1_000)
    measured.record_rebalance(500, 1_000)
    measured.record_rebalance(None, 1_000)
    measured.record_callback("revoked", 250, 1_000)
    values = measured.snapshot(11_000)
    totals = [values[f"{name}-total"] for name in ("heartbeat", "join", "sync", "rebalance", "failed-rebalance")]
    assert totals == [1, 1, 1, 1, 1]
    assert values["heartbeat-response-time-max"] == pytest.approx(100)
    assert (values["join-time-avg"], values["sync-time-max"]) == (pytest.approx(200), pytest.approx(300))
    assert (values["rebalance-latency-avg"], values["last-rebalance-seconds-ago"]) == (pytest.approx(500), 10)
    assert values["partition-revoked-latency-avg"] == pytest.approx(250)
    assert values["rebalance-rate-per-hour"] > 0
