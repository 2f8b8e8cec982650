from __future__ import annotations

from typing import Any

import pytest

from bus.client.config.clients import AdminConfig, ConsumerConfig, ProducerConfig
from bus.client.config.parsing import parse_addresses, parse_config
from bus.client.config.values import duration_ms
from bus.errors import BusError, ErrorCode


class Interceptor:
    def on_send(self, record: Any) -> Any:
        return record

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        pass

    def close(self) -> None:
        pass


def refusal(kind: Any, configs: dict[str, Any]) -> str:
    with pytest.raises(BusError) as caught:
        parse_config(kind, configs)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    return caught.value.message


def test_defaults_are_kafkas() -> None:
    producer, consumer = parse_config(ProducerConfig, {}), parse_config(ConsumerConfig, {})
    assert (producer.acks, producer.delivery_timeout_ms, producer.buffer_memory) == (-1, 120_000, 33_554_432)
    assert (producer.max_request_size, producer.max_in_flight_requests_per_connection) == (1_048_576, 5)
    assert (producer.linger_ms, producer.batch_size, producer.enable_idempotence) == (5, 16_384, True)
    assert (producer.compression_type, producer.compression_gzip_level) == ("none", -1)
    assert (producer.compression_lz4_level, producer.compression_zstd_level) == (9, 3)
    assert (producer.partitioner, producer.partitioner_ignore_keys) == (None, False)
    assert (producer.partitioner_adaptive_partitioning_enable, producer.partitioner_availability_timeout_ms) == (
        True,
        0,
    )
    assert (producer.metrics_sample_window_ms, producer.metrics_num_samples) == (30_000, 2)
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


def test_defaults_of_groups_are_kafkas() -> None:
    config = parse_config(ConsumerConfig, {"group_id": "billing"})
    assert (config.session_timeout_ms, config.heartbeat_interval_ms, config.max_poll_interval_ms) == (
        45_000,
        3_000,
        300_000,
    )
    assert (config.enable_auto_commit, config.auto_commit_interval_ms) == (True, 5_000)
    assert config.partition_assignment_strategy == ("range", "cooperative-sticky")
    assert (config.isolation_level, config.group_instance_id, config.client_rack) == ("read_uncommitted", None, "")


def test_without_a_group_nothing_is_committed_and_nothing_of_a_group_may_be_asked_for() -> None:
    assert parse_config(ConsumerConfig, {}).enable_auto_commit is False
    assert "a group_id beside it" in refusal(ConsumerConfig, {"enable_auto_commit": True})
    assert "a group_id beside it" in refusal(ConsumerConfig, {"group_instance_id": "a"})


def test_heartbeats_come_more_often_than_the_session_ends() -> None:
    message = refusal(ConsumerConfig, {"heartbeat_interval_ms": 6_000, "session_timeout_ms": 6_000})
    assert message == "expected heartbeat_interval_ms below session_timeout_ms=6000, found 6000"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("PT1H", 3_600_000), ("P1DT2H3M4.5S", 93_784_500), ("pt0.0019s", 1), ("P2D", 172_800_000), ("PT0S", 0)],
)
def test_durations_are_read_as_java_reads_them(text: str, expected: int) -> None:
    assert duration_ms(text) == expected
    assert parse_config(ConsumerConfig, {"auto_offset_reset": f"by_duration:{text}"})


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1H", "PT-1H", "P1W", "PT1H "])
def test_what_is_no_duration_is_refused(text: str) -> None:
    assert duration_ms(text) is None
    assert "by_duration" in refusal(ConsumerConfig, {"auto_offset_reset": f"by_duration:{text}"})


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({"transactional_id": " "}, "not blank"),
        ({"transactional_id": "a", "name": "b"}, "no name beside it"),
        ({"transactional_id": "a", "enable_idempotence": False}, "enable_idempotence=True"),
        ({"transactional_id": "a", "acks": 1}, "acks='all'"),
        ({"transactional_id": "a", "retries": 0}, "retries above 0"),
        ({"transaction_timeout_ms": 1_000}, "a transactional_id beside it"),
    ],
)
def test_transactions_need_an_identity_of_their_own_and_idempotence(configs: dict[str, Any], expected: str) -> None:
    assert expected in refusal(ProducerConfig, configs)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("transaction_two_phase_commit_enable", "no second coordinator"),
        ("bootstrap_servers", "first argument"),
        ("partitioner_class", "as partitioner"),
        ("interceptor_classes", "as interceptors"),
        ("metric_reporters", "metrics()"),
        ("sasl_kerberos_service_name", "there is no Kerberos"),
        ("ssl_keystore_password", "keys and certificates are PEM"),
    ],
)
def test_config_of_kafka_without_a_meaning_here_is_refused_with_the_reason(name: str, reason: str) -> None:
    message = refusal(ProducerConfig, {name: 1})
    assert message.startswith(f"{name}: ")
    assert reason in message


def test_config_of_another_client_is_refused_as_such() -> None:
    assert "a consumer, found 'linger_ms', which is one of a producer" in refusal(ConsumerConfig, {"linger_ms": 1})
    assert "a producer, found 'max_poll_records'" in refusal(ProducerConfig, {"max_poll_records": 1})


@pytest.mark.parametrize(
    ("kind", "configs", "expected"),
    [
        (ProducerConfig, {"acks": 2}, "one of"),
        (ProducerConfig, {"acks": True}, "one of"),
        (ProducerConfig, {"acks": []}, "acks"),
        (ProducerConfig, {"retries": -1}, "0 to"),
        (ProducerConfig, {"retries": "3"}, "an integer"),
        (ProducerConfig, {"buffer_memory": True}, "an integer"),
        (ProducerConfig, {"compression_type": "brotli"}, "'gzip', 'snappy', 'lz4', 'zstd'"),
        (ProducerConfig, {"compression_gzip_level": 0}, "1 to 9, or -1"),
        (ProducerConfig, {"compression_lz4_level": 18}, "1 to 17"),
        (ProducerConfig, {"compression_zstd_level": 23}, "-131072 to 22"),
        (ProducerConfig, {"linger_ms": -1}, "0 to"),
        (ProducerConfig, {"batch_size": -1}, "0 to"),
        (ProducerConfig, {"buffer_memory": 0}, "1024 to"),
        (ProducerConfig, {"enable_idempotence": 1}, "True or False"),
        (ProducerConfig, {"name": ""}, "1 to 249"),
        (ProducerConfig, {"name": "a" * 250}, "1 to 249"),
        (ProducerConfig, {"name": "a b"}, "1 to 249"),
        (ProducerConfig, {"name": "a\n"}, "1 to 249"),
        (ProducerConfig, {"partitioner": "sticky"}, "'round_robin'"),
        (ProducerConfig, {"partitioner": 3}, "partition_count"),
        (ProducerConfig, {"value_serializer": "json"}, "serialize(topic, headers, value)"),
        (ProducerConfig, {"interceptors": [object()]}, "on_send, on_acknowledgement, close"),
        (ProducerConfig, {"interceptors": [Interceptor]}, "a list of objects"),
        (ProducerConfig, {"interceptors": Interceptor()}, "a list"),
        (ProducerConfig, {"metrics_num_samples": 0}, "1 to"),
        (ConsumerConfig, {"auto_offset_reset": "first"}, "'earliest'"),
        (ConsumerConfig, {"max_poll_records": 0}, "1 to"),
        (ConsumerConfig, {"group_id": " "}, "not blank"),
        (ConsumerConfig, {"partition_assignment_strategy": "stuck"}, "cooperative-sticky"),
        (ConsumerConfig, {"partition_assignment_strategy": []}, "one assignor or more"),
        (ConsumerConfig, {"isolation_level": "serializable"}, "'read_committed'"),
        (ConsumerConfig, {"value_deserializer": "json"}, "deserialize(topic, headers, data)"),
        (ConsumerConfig, {"interceptors": [Interceptor()]}, "on_consume, on_commit, close"),
        (AdminConfig, {"client_id": "tür"}, "ASCII"),
    ],
)
def test_bad_value_says_what_was_expected_and_found(kind: Any, configs: dict[str, Any], expected: str) -> None:
    message = refusal(kind, configs)
    assert expected in message
    assert next(iter(configs)) in message


def test_what_a_user_plugs_in_is_kept_as_it_is() -> None:
    interceptor, encode = Interceptor(), str.encode
    config = parse_config(
        ProducerConfig, {"value_serializer": encode, "interceptors": [interceptor], "partitioner": "round_robin"}
    )
    assert config.value_serializer is encode
    assert config.interceptors == (interceptor,)
    assert config.partitioner == "round_robin"


@pytest.mark.parametrize("conflicting", [{"acks": 1}, {"acks": "0"}, {"retries": 0}])
def test_idempotence_gives_way_unless_it_was_asked_for(conflicting: dict[str, Any]) -> None:
    assert not parse_config(ProducerConfig, conflicting).enable_idempotence
    assert not parse_config(
        ProducerConfig, {**conflicting, "max_in_flight_requests_per_connection": 6}
    ).enable_idempotence
    (name,) = conflicting
    message = refusal(ProducerConfig, {**conflicting, "enable_idempotence": True})
    assert "enable_idempotence=True" in message
    assert f"found {name}={int(conflicting[name])}" in message


def test_idempotence_with_many_requests_in_flight_is_an_error_even_by_default() -> None:
    for configs in ({}, {"enable_idempotence": True}):
        message = refusal(ProducerConfig, {**configs, "max_in_flight_requests_per_connection": 6})
        assert "max_in_flight_requests_per_connection of at most 5, found 6" in message
    freed = {"enable_idempotence": False, "max_in_flight_requests_per_connection": 6}
    assert parse_config(ProducerConfig, freed).max_in_flight_requests_per_connection == 6
    assert parse_config(ProducerConfig, {"max_in_flight_requests_per_connection": 5}).enable_idempotence


@pytest.mark.parametrize("without", [{"enable_idempotence": False}, {"acks": 1}, {"retries": 0}])
def test_named_producer_is_idempotent_or_nothing(without: dict[str, Any]) -> None:
    assert parse_config(ProducerConfig, {"name": "loader.1_a-b"}).name == "loader.1_a-b"
    assert "name='loader'" in refusal(ProducerConfig, {"name": "loader", **without})


def test_delivery_timeout_covers_linger_and_one_request() -> None:
    times = {"linger_ms": 7, "request_timeout_ms": 200_000}
    assert parse_config(ProducerConfig, times).delivery_timeout_ms == 200_007
    assert parse_config(ProducerConfig, {**times, "delivery_timeout_ms": 200_007}).delivery_timeout_ms == 200_007
    message = refusal(ProducerConfig, {**times, "delivery_timeout_ms": 200_006})
    assert "linger_ms=7 + request_timeout_ms=200000, found 200006" in message
    longest = {"linger_ms": 2**31 - 1, "request_timeout_ms": 2**31 - 1}
    assert parse_config(ProducerConfig, longest).delivery_timeout_ms == 2**31 - 1


@pytest.mark.parametrize("kind", [AdminConfig, ProducerConfig, ConsumerConfig])
@pytest.mark.parametrize(("name", "default_max"), [("retry_backoff", 1_000), ("reconnect_backoff", 1_000)])
def test_largest_backoff_is_never_below_the_first(kind: Any, name: str, default_max: int) -> None:
    first, largest = f"{name}_ms", f"{name}_max_ms"
    assert getattr(parse_config(kind, {first: 5_000}), largest) == 5_000
    assert getattr(parse_config(kind, {largest: 1}), first) == 1
    assert getattr(parse_config(kind, {first: 1}), largest) == default_max
    assert f"at least {first}=3, found 2" in refusal(kind, {first: 3, largest: 2})


@pytest.mark.parametrize("name", ["max_request_size", "batch_size"])
def test_nothing_is_larger_than_the_buffer(name: str) -> None:
    assert getattr(parse_config(ProducerConfig, {"buffer_memory": 4_096}), name) == 4_096
    assert f"{name} of at most buffer_memory=4096, found 4097" in refusal(
        ProducerConfig, {"buffer_memory": 4_096, name: 4_097}
    )
    assert "buffer_memory=33554432" in refusal(ProducerConfig, {name: 33_554_433})


def test_addresses_come_as_text_or_list() -> None:
    assert parse_addresses("a:1, b:2") == parse_addresses(["a:1", "b:2"]) == ("a:1", "b:2")
    assert parse_addresses("[::1]:9094") == ("[::1]:9094",)


@pytest.mark.parametrize("bad", ["", "localhost", "host:", ":9094", "host:0", "host:99999", "host:port", [], "a:1,"])
def test_bad_address_is_refused(bad: Any) -> None:
    with pytest.raises(BusError, match="host:port"):
        parse_addresses(bad)
