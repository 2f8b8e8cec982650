from __future__ import annotations

from typing import Any

import pytest

from bus.client.configs import AdminConfig, ConsumerConfig, ProducerConfig, parse_addresses, parse_config
from bus.errors import BusError, ErrorCode


def refusal(kind: Any, configs: dict[str, Any]) -> str:
    with pytest.raises(BusError) as caught:
        parse_config(kind, configs)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    return caught.value.message


def test_defaults_are_kafkas() -> None:
    producer, consumer = parse_config(ProducerConfig, {}), parse_config(ConsumerConfig, {})
    assert (producer.acks, producer.delivery_timeout_ms, producer.buffer_memory) == (-1, 120_000, 33_554_432)
    assert (producer.max_request_size, producer.max_in_flight_requests_per_connection) == (1_048_576, 5)
    assert (consumer.auto_offset_reset, consumer.max_poll_records, consumer.fetch_max_bytes) == (
        "latest",
        500,
        52428800,
    )


@pytest.mark.parametrize(("given", "expected"), [("all", -1), (-1, -1), ("1", 1), (1, 1), ("0", 0), (0, 0)])
def test_acks_are_spelled_as_kafka_spells_them(given: Any, expected: int) -> None:
    assert parse_config(ProducerConfig, {"acks": given}).acks == expected


def test_unknown_config_names_the_nearest_one() -> None:
    assert "'retry_backoff_ms'" in refusal(ProducerConfig, {"retry_backof_ms": 1})
    assert "'max_poll_records'" in refusal(ConsumerConfig, {"max.poll.records": 1})


@pytest.mark.parametrize("name", ["group_id", "enable_auto_commit"])
def test_groups_are_refused_in_plain_words(name: str) -> None:
    assert "not supported yet" in refusal(ConsumerConfig, {name: "billing"})


@pytest.mark.parametrize("name", ["linger_ms", "batch_size", "enable_idempotence", "transactional_id"])
def test_what_comes_later_is_not_silently_accepted(name: str) -> None:
    assert name in refusal(ProducerConfig, {name: 1})


@pytest.mark.parametrize(
    ("kind", "configs", "expected"),
    [
        (ProducerConfig, {"acks": 2}, "one of"),
        (ProducerConfig, {"acks": True}, "one of"),
        (ProducerConfig, {"acks": []}, "acks"),
        (ProducerConfig, {"retries": -1}, "0 to"),
        (ProducerConfig, {"retries": "3"}, "an integer"),
        (ProducerConfig, {"buffer_memory": True}, "an integer"),
        (ProducerConfig, {"compression_type": "brotli"}, "'zstd'"),
        (ConsumerConfig, {"auto_offset_reset": "first"}, "'earliest'"),
        (ConsumerConfig, {"max_poll_records": 0}, "1 to"),
        (AdminConfig, {"client_id": "tür"}, "ASCII"),
    ],
)
def test_bad_value_says_what_was_expected_and_found(kind: Any, configs: dict[str, Any], expected: str) -> None:
    message = refusal(kind, configs)
    assert expected in message
    assert next(iter(configs)) in message


def test_addresses_come_as_text_or_list() -> None:
    assert parse_addresses("a:1, b:2") == parse_addresses(["a:1", "b:2"]) == ("a:1", "b:2")
    assert parse_addresses("[::1]:9094") == ("[::1]:9094",)


@pytest.mark.parametrize("bad", ["", "localhost", "host:", ":9094", "host:0", "host:99999", "host:port", [], "a:1,"])
def test_bad_address_is_refused(bad: Any) -> None:
    with pytest.raises(BusError, match="host:port"):
        parse_addresses(bad)
