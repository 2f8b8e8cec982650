"""Options of run() that are refused, each with what was expected."""

from __future__ import annotations

from typing import Any

import pytest

from bus.errors import BusError, ErrorCode
from bus.processing import parse_settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"worker": 3}, "found 'worker'; did you mean 'workers'?"),
        ({"max_workers": 3}, "found 'max_workers'; did you mean 'workers'?"),
        ({"concurency": 3}, "found 'concurency'; did you mean 'concurrency'?"),
        ({"ack_mode": "manual"}, "found 'ack_mode'; did you mean 'ack'?"),
        ({"error_handler": print}, "found 'error_handler'; did you mean 'on_error'?"),
        ({"max_poll_records": 3}, "expected it in Consumer(..., max_poll_records=...), it is a config of the consumer"),
        ({"max_poll_record": 3}, "max_poll_records is a config of the consumer"),
        ({"zzz": 3}, "expected one of the options of run(), ack, ack_count"),
        ({"concurrency": 0}, "concurrency: expected an integer from 1"),
        ({"partitions": [0, 0]}, "partitions: expected None, or a list of numbers of partitions"),
        ({"partitions": [True]}, "partitions: expected None, or a list of numbers of partitions"),
        ({"partitions": []}, "partitions: expected None, or a list of numbers of partitions"),
        ({"workers": 0}, "workers: expected an integer from 1"),
        ({"order": "offset"}, "order: expected one of 'partition', 'key', 'none'"),
        ({"ack": "auto"}, "ack: expected one of 'record', 'batch'"),
        ({"on_error": "ignore"}, "on_error: expected one of 'stop', 'skip'"),
        ({"on_error": ValueError}, "on_error: expected one of"),
        ({"retries": -1}, "retries: expected an integer from 0"),
        ({"retries": True}, "retries: expected an integer from 0"),
        ({"dead_letter_topic": ""}, "dead_letter_topic: expected the name of a topic"),
        ({"queued_records_max": 0}, "queued_records_max: expected an integer from 1"),
        ({"ack_count": 5}, "ack_count: expected ack to be one of count, count_time beside it, found 'batch'"),
        ({"producer_configs": {}}, "producer_configs: expected a transactional_id beside them, found none"),
        ({"transactional_id": " "}, "transactional_id: expected None, or a text that is not blank"),
        ({"transactional_id": "a", "producer_configs": [1]}, "producer_configs: expected settings of a producer"),
        ({"transactional_id": "a", "producer_configs": {"acks": 1}}, "expected acks='all'"),
        ({"transactional_id": "a", "producer_configs": {"name": "b"}}, "expected no name, found one: the argument"),
        ({"transactional_id": "a", "ack": "manual"}, "expected an ack without acknowledgements beside it"),
        ({"batch": True}, "batch: expected None, 'list' (of records) or 'arrow' (a table), found True"),
        ({"batch": "list", "order": "key"}, "expected order 'partition' or 'none' beside it, found 'key'"),
        ({"ack": "count", "ack_time_ms": 5}, "ack_time_ms: expected ack to be one of time, count_time"),
    ],
)
def test_an_option_that_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BusError) as raised:
        parse_settings(options)
    assert raised.value.code is ErrorCode.INVALID_CONFIG
    assert message in raised.value.message


def test_an_error_of_the_settings_of_a_producer_shows_none_of_them() -> None:
    for given in ({"sasl_password": "pencil", 1: 2}, [("sasl_password", "pencil")]):
        with pytest.raises(BusError) as raised:
            parse_settings({"transactional_id": "a", "producer_configs": given})
        assert "pencil" not in str(raised.value)


def test_the_dead_letter_topic_is_named_after_the_records() -> None:
    assert parse_settings({}).dead_letter_topic_of("orders") == "orders.dlq"
    assert parse_settings({"dead_letter_topic": "failed"}).dead_letter_topic_of("orders") == "failed"
    assert parse_settings({"dead_letter_topic": lambda topic: topic + "-x"}).dead_letter_topic_of("o") == "o-x"


def test_each_consumer_of_a_run_has_a_transactional_id_of_its_own() -> None:
    assert parse_settings({}).transactional_ids == ()
    assert parse_settings({"transactional_id": "a", "concurrency": 3}).transactional_ids == ("a", "a-2", "a-3")
