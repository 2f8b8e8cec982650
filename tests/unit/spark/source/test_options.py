"""Every option of Spark's Kafka guide, row by row: what it means here, or why it is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from bus.model import TopicPartition
from bus.spark.source.positions import AtGroup, AtOffsets, AtTime, AtTimes, AtVersions, Edge
from bus.spark.source.source_options import (
    OPTION_NAMES,
    Assigned,
    OptionError,
    SourceOptions,
    Subscribed,
    SubscribedPattern,
    parse_source_options,
)

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
A_0, A_1, B_0, B_2 = (TopicPartition(*found) for found in (("a", 0), ("a", 1), ("b", 0), ("b", 2)))
PROFILE = '[prod]\nbootstrap.servers = "p:1"\nsecurity.protocol = "SSL"\nssl.key.password.file = "password"\n'
LEAST = {"kafka.bootstrap.servers": "localhost:9094", "subscribe": "orders"}


def parsed(given: dict[str, str], *, is_stream: bool) -> SourceOptions:
    """Parse `given` beside the options that every query needs."""
    place = {} if any("bootstrap" in name or name == "bus.root" for name in map(str.lower, given)) else {**LEAST}
    place.pop("subscribe", None)
    whose = {} if {name.lower() for name in given} & {"assign", "subscribe", "subscribepattern"} else LEAST
    return parse_source_options({**place, **({"subscribe": "orders"} if whose else {}), **given}, is_stream=is_stream)


BOTH = (False, True)
BATCH, STREAM = (False,), (True,)


@pytest.mark.parametrize(
    ("given", "kinds", "field", "expected"),
    [
        ({"assign": '{"orders":[1,0]}'}, BOTH, "subscription", Assigned((ORDERS_0, ORDERS_1))),
        ({"assign": '{"b":[2],"a":[0,1]}'}, BOTH, "subscription", Assigned((A_0, A_1, B_2))),
        ({"subscribe": "orders, alerts,orders"}, BOTH, "subscription", Subscribed(("alerts", "orders"))),
        ({"subscribePattern": "orders-.*"}, BOTH, "subscription", SubscribedPattern("orders-.*")),
        ({}, STREAM, "start", Edge.LATEST),
        ({}, BATCH, "start", Edge.EARLIEST),
        ({"startingOffsets": "Earliest"}, BOTH, "start", Edge.EARLIEST),
        ({"startingOffsets": "latest"}, STREAM, "start", Edge.LATEST),
        ({"startingOffsets": '{"orders":{"0":23,"1":-2}}'}, BOTH, "start", AtOffsets({ORDERS_0: 23, ORDERS_1: -2})),
        (
            {"startingOffsets": ' {"a":{"0":23,"1":-1},"b":{"0":-2}} '},
            STREAM,
            "start",
            AtOffsets({A_0: 23, A_1: -1, B_0: -2}),
        ),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, STREAM, "start", AtOffsets({ORDERS_0: -1})),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":1000}}'}, BOTH, "start", AtTimes({ORDERS_0: 1000})),
        (
            {"startingOffsetsByTimestamp": '{"a":{"0":1000,"1":1000},"b":{"0":2000}}'},
            BOTH,
            "start",
            AtTimes({A_0: 1000, A_1: 1000, B_0: 2000}),
        ),
        ({"startingTimestamp": "1000"}, BOTH, "start", AtTime(1000)),
        ({"startingTimestamp": "9223372036854775807"}, BOTH, "start", AtTime(2**63 - 1)),
        ({}, BATCH, "end", Edge.LATEST),
        ({"endingOffsets": "laTest"}, BATCH, "end", Edge.LATEST),
        ({"endingOffsets": '{"orders":{"0":50,"1":-1}}'}, BATCH, "end", AtOffsets({ORDERS_0: 50, ORDERS_1: -1})),
        ({"endingOffsetsByTimestamp": '{"orders":{"0":1000}}'}, BATCH, "end", AtTimes({ORDERS_0: 1000})),
        ({"endingOffsetsByTimestamp": '{"a":{"0":1},"b":{"0":2}}'}, BATCH, "end", AtTimes({A_0: 1, B_0: 2})),
        ({"endingTimestamp": "1000"}, BATCH, "end", AtTime(1000)),
        ({}, BOTH, "is_late_start_latest", False),
        ({"startingOffsetsByTimestampStrategy": "error"}, BOTH, "is_late_start_latest", False),
        ({"startingOffsetsByTimestampStrategy": "LATEST"}, BOTH, "is_late_start_latest", True),
        ({}, BOTH, "fail_on_data_loss", True),
        ({"failOnDataLoss": "False"}, BOTH, "fail_on_data_loss", False),
        ({}, BOTH, "include_headers", False),
        ({"includeHeaders": "true"}, BOTH, "include_headers", True),
        ({}, BOTH, "min_partitions", None),
        ({"minPartitions": "10"}, BOTH, "min_partitions", 10),
        ({}, BOTH, "max_records_per_partition", None),
        ({"maxRecordsPerPartition": "1000"}, BOTH, "max_records_per_partition", 1000),
        ({}, STREAM, "max_offsets_per_trigger", None),
        ({"maxOffsetsPerTrigger": "9223372036854775807"}, STREAM, "max_offsets_per_trigger", 2**63 - 1),
        ({"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "10"}, STREAM, "min_offsets_per_trigger", 10),
        ({}, STREAM, "max_trigger_delay_ms", 15 * 60_000),
        ({"maxTriggerDelay": "1111"}, STREAM, "max_trigger_delay_ms", 1_111),
        ({"maxTriggerDelay": "5 min"}, STREAM, "max_trigger_delay_ms", 300_000),
        ({"maxTriggerDelay": "90s"}, STREAM, "max_trigger_delay_ms", 90_000),
        ({"maxTriggerDelay": "2h"}, STREAM, "max_trigger_delay_ms", 7_200_000),
        ({}, BOTH, "patience_ms", 120_000),
        ({}, STREAM, "min_offsets_per_trigger", None),
        ({"kafkaConsumer.pollTimeoutMs": "512"}, BOTH, "patience_ms", 512),
        ({}, BOTH, "retries", 3),
        ({"fetchOffset.numRetries": "0"}, BOTH, "retries", 0),
        ({}, BOTH, "retry_interval_ms", 1_000),
        ({"fetchOffset.retryIntervalMs": "10"}, BOTH, "retry_interval_ms", 10),
        ({}, BOTH, "group_id_prefix", "spark-bus-source"),
        ({"groupIdPrefix": "nightly"}, BOTH, "group_id_prefix", "nightly"),
        ({}, BOTH, "group_id", None),
        ({"kafka.group.id": "sales"}, BOTH, "group_id", "sales"),
        ({"kafka.group.id": "sales", "groupIdPrefix": "nightly"}, BOTH, "group_id", "sales"),
        ({"bus.group.id": "sales", "kafka.group.id": "other"}, BOTH, "group_id", "sales"),
        ({}, STREAM, "has_progress", True),
        ({"bus.progress": "false"}, STREAM, "has_progress", False),
        ({}, BOTH, "splits_partitions", False),
        ({"bus.splitPartitions": "true"}, BOTH, "splits_partitions", True),
        ({"minPartitions": "7"}, BOTH, "splits_partitions", True),
        ({"minPartitions": "7", "bus.splitPartitions": "false"}, BOTH, "splits_partitions", False),
        ({"maxRecordsPerPartition": "9"}, BOTH, "splits_partitions", True),
        ({}, BOTH, "pushes_filters", False),
        ({"bus.pushFilters": "true"}, BOTH, "pushes_filters", True),
        ({"bus.startingGroup": "sales"}, BOTH, "start", AtGroup("sales")),
        ({"bus.startingVersion": "12"}, BOTH, "start", AtVersions(12)),
        ({"bus.startingVersion": '{"orders":{"0":12}}'}, BOTH, "start", AtVersions({ORDERS_0: 12})),
        ({"bus.endingVersion": "12"}, BATCH, "end", AtVersions(12)),
        ({}, STREAM, "adopts_kafka_offsets", False),
        ({"bus.adoptKafkaOffsets": "true"}, STREAM, "adopts_kafka_offsets", True),
    ],
)
def test_an_option_means_what_it_means_to_spark(
    given: dict[str, str], kinds: tuple[bool, ...], field: str, expected: Any
) -> None:
    for is_stream in kinds:
        assert getattr(parsed(given, is_stream=is_stream), field) == expected


@pytest.mark.parametrize(
    ("given", "kinds", "message"),
    [
        ({"subscribe": "a", "subscribePattern": "a.*"}, BOTH, "found subscribe and subscribePattern"),
        ({"subscribe": "a", "assign": '{"a":[0]}', "subscribePattern": "a"}, BOTH, "assign and subscribe and subscr"),
        (
            {"subscribe": "a", "assign": '{"a":[0]}'},
            BOTH,
            "one of assign, subscribe and subscribePattern, found assign and",
        ),
        ({"subscribe": " , "}, BOTH, "subscribe: expected names of topics"),
        ({"subscribe": ""}, BOTH, "subscribe: expected a value"),
        ({"subscribePattern": ""}, BOTH, "subscribePattern: expected a value"),
        ({"subscribePattern": "orders["}, BOTH, "subscribePattern: expected a regular expression, found 'orders\\['"),
        ({"assign": ""}, BOTH, "assign: expected a value"),
        ({"assign": "orders"}, BOTH, 'assign: expected JSON like {"orders":'),
        ({"assign": '{"orders":[-1]}'}, BOTH, "assign: .*found partition -1 of orders"),
        ({"assign": "{}"}, BOTH, "assign: .*at least one partition"),
        ({"startingOffsets": "newest"}, BOTH, "startingOffsets: expected earliest, latest or JSON .*found 'newest'"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, BOTH, "startingOffsets: expected offsets from 0 on.*found -3"),
        ({"startingOffsets": '{"orders":{"x":3}}'}, BOTH, "startingOffsets: expected a partition of orders"),
        ({"startingOffsets": '{"orders":{"0":"3"}}'}, BOTH, "startingOffsets: expected an offset for partition 0"),
        ({"startingOffsets": '{"orders":'}, BOTH, "startingOffsets: expected JSON like"),
        ({"startingOffsets": "latest"}, BATCH, "startingOffsets: a batch query cannot begin at the latest"),
        (
            {"startingOffsets": '{"orders":{"0":-1}}'},
            BATCH,
            "startingOffsets: a batch query cannot begin at the latest",
        ),
        ({"endingOffsets": "earliest"}, BATCH, "endingOffsets: a batch query cannot end at the earliest"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, BATCH, "endingOffsets: a batch query cannot end at the earliest"),
        ({"endingOffsets": "latest"}, STREAM, "endingOffsets: a streaming query has no end"),
        ({"endingOffsetsByTimestamp": "{}"}, STREAM, "endingOffsetsByTimestamp: a streaming query has no end"),
        ({"endingTimestamp": "1"}, STREAM, "endingTimestamp: a streaming query has no end"),
        ({"bus.endingVersion": "1"}, STREAM, "bus.endingVersion: a streaming query has no end"),
        ({"startingTimestamp": "yesterday"}, BOTH, "startingTimestamp: expected a whole number, found 'yesterday'"),
        ({"startingTimestamp": "-1"}, BOTH, "startingTimestamp: expected a number from 0 on, found -1"),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":-1}}'}, BOTH, "startingOffsetsByTimestamp: .*found -1"),
        ({"startingOffsetsByTimestamp": "1000"}, BOTH, "startingOffsetsByTimestamp: expected JSON like"),
        (
            {"startingOffsetsByTimestampStrategy": "earliest"},
            BOTH,
            "Strategy: expected error or latest, found 'earliest'",
        ),
        ({"failOnDataLoss": "maybe"}, BOTH, "failOnDataLoss: expected true or false, found 'maybe'"),
        ({"includeHeaders": "1"}, BOTH, "includeHeaders: expected true or false, found '1'"),
        ({"minPartitions": "0"}, BOTH, "minPartitions: expected a number from 1 on, found 0"),
        ({"minPartitions": "-1"}, BOTH, "minPartitions: expected a number from 1 on, found -1"),
        ({"minPartitions": "many"}, BOTH, "minPartitions: expected a whole number, found 'many'"),
        ({"minPartitions": "1.0"}, BOTH, "minPartitions: expected a whole number, found '1.0'"),
        (
            {"bus.splitPartitions": "false", "maxRecordsPerPartition": "9"},
            BOTH,
            "maxRecordsPerPartition: expected bus.splitPartitions=true, found false: it cuts partitions",
        ),
        ({"maxRecordsPerPartition": "0"}, BOTH, "maxRecordsPerPartition: expected a number from 1 on"),
        ({"maxOffsetsPerTrigger": "0"}, STREAM, "maxOffsetsPerTrigger: expected a number from 1 on"),
        (
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            STREAM,
            "minOffsetsPerTrigger: .*at most .*4, found 5",
        ),
        ({"minOffsetsPerTrigger": "0"}, STREAM, "minOffsetsPerTrigger: expected a number from 1 on"),
        ({"maxOffsetsPerTrigger": str(2**63)}, STREAM, "maxOffsetsPerTrigger: expected a number up to 922.*5807"),
        ({"startingTimestamp": str(2**63)}, BOTH, "startingTimestamp: expected a number up to 9223372036854775807"),
        ({"bus.startingVersion": str(2**63)}, BOTH, "bus.startingVersion: expected a number up to"),
        ({"startingOffsets": f'{{"a":{{"0":{2**63}}}}}'}, BOTH, "startingOffsets: expected an offset up to 9223"),
        ({"startingOffsets": '{"a":{"0":1},"a":{"1":1}}'}, BOTH, "startingOffsets: .*'a' twice"),
        ({"assign": '{"a":[0],"a":[1]}'}, BOTH, "assign: .*'a' twice"),
        ({"fetchOffset.retryIntervalMs": "-1"}, BOTH, "fetchOffset.retryIntervalMs: expected a number from 0 on"),
        ({"groupIdPrefix": " "}, BOTH, "groupIdPrefix: expected a value"),
        ({"maxTriggerDelay": "soon"}, STREAM, "maxTriggerDelay: expected a time like .*found 'soon'"),
        ({"fetchOffset.numRetries": "-1"}, BOTH, "fetchOffset.numRetries: expected a number from 0 on"),
        ({"kafkaConsumer.pollTimeoutMs": "0"}, BOTH, "kafkaConsumer.pollTimeoutMs: expected a number from 1 on"),
        ({"bus.startingVersion": "-1"}, BOTH, "bus.startingVersion: expected JSON"),
        ({"path": "/data"}, BOTH, r"path: expected load\(\) without a path, found '/data'"),
        ({"subscribes": "orders", "subscribe": "orders"}, BOTH, "subscribes: .*did you mean subscribe"),
        ({"startingOffset": "earliest"}, BOTH, "startingoffset: .*did you mean startingOffsets"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_name(
    given: dict[str, str], kinds: tuple[bool, ...], message: str
) -> None:
    for is_stream in kinds:
        with pytest.raises(OptionError, match=message):
            parsed(given, is_stream=is_stream)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("kafka.group.id", "", "kafka.group.id: expected a value"),
        ("group.id", "sales", "group.id: .*see bus.group.id"),
        ("kafka.auto.offset.reset", "earliest", "kafka.auto.offset.reset: use startingOffsets"),
        ("kafka.key.deserializer", "x", "kafka.key.deserializer: keys are binary columns"),
        ("kafka.value.deserializer", "x", "kafka.value.deserializer: values are binary columns"),
        ("kafka.enable.auto.commit", "true", "kafka.enable.auto.commit: the query commits its progress"),
        ("kafka.interceptor.classes", "x", "kafka.interceptor.classes: "),
        ("kafka.interceptors", "x", "kafka.interceptors: .*leave it out"),
        (
            "kafka.security.protocol",
            "SASL_SSL",
            "sasl_mechanism: expected one of SCRAM-SHA-256, .*, found none",
        ),
        ("kafka.sasl.jaas.config", "a hushed word", "kafka.sasl.jaas.config: expected a line of .*found another value"),
        ("kafka.sasl.oauth.token.provider", "hush", "expected a function, .*found another value"),
        (
            "kafka.sasl.oauthbearer.scope",
            "x",
            "sasl_oauthbearer_scope: expected security_protocol=SASL_PLAINTEXT or SASL",
        ),
        ("kafka.ssl.truststore.location", "x", "ssl_truststore_location: expected security_protocol=SSL or SASL_SSL"),
        ("kafka.ssl.truststore.password", "x", "ssl_truststore_password: keys .* are PEM.*; leave it out"),
        ("kafka.receive.buffer.bytes", "65536", "kafka.receive.buffer.bytes: .*leave it out"),
        ("kafka.fetch.min.bytes", "-1", "kafka.fetch.min.bytes: expected .*found '-1'"),
        ("kafka.fetch.min.bytes", "many", "kafka.fetch.min.bytes: expected .*found 'many'"),
        ("kafka.isolation.level", "dirty", "kafka.isolation.level: expected .*found 'dirty'"),
    ],
)
def test_a_setting_that_no_query_may_have_says_why(name: str, value: str, message: str) -> None:
    for is_stream in BOTH:
        with pytest.raises(OptionError, match=message):
            parsed({name: value}, is_stream=is_stream)


def test_settings_of_the_client_reach_it_under_its_own_names_and_types() -> None:
    location = parsed({"kafka.fetch.min.bytes": "7", "kafka.client.id": "etl"}, is_stream=False).location
    assert location.settings == {"fetch_min_bytes": 7, "client_id": "etl"}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("isolation.level", "read_committed", "read_committed"),
        ("isolation.level", "read_uncommitted", "read_uncommitted"),
        ("metadata.max.age.ms", "1", 1),
        ("request.timeout.ms", "3000", 3000),
        ("default.api.timeout.ms", "3000", 3000),
    ],
)
def test_settings_that_jobs_of_kafka_have_are_taken(name: str, text: str, value: Any) -> None:
    settings = parsed({f"kafka.{name}": text}, is_stream=True).location.settings
    assert settings == {name.replace(".", "_"): value}


@pytest.mark.parametrize(
    "name",
    ["session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "group.instance.id"],
)
def test_settings_without_meaning_here_are_taken_and_have_no_effect(name: str) -> None:
    assert parsed({f"kafka.{name}": "60000"}, is_stream=True).location.settings == {}


def test_settings_of_tls_are_the_client_s_and_a_password_is_shown_nowhere() -> None:
    texts = {"security.protocol": "ssl", "ssl.keystore.location": "own.pem", "ssl.key.password": "hush"}
    options = parsed({f"kafka.{name}": text for name, text in texts.items()}, is_stream=True)
    assert options.location.settings["ssl_key_password"] == "hush"
    assert options.location.settings["security_protocol"] == "SSL"
    assert "hush" not in repr(options)


def test_profile_has_the_address_and_the_connection_and_goes_to_executors_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BUS_ADDRESS", "BUS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "config.toml"
    file.write_text(PROFILE)
    (tmp_path / "password").write_text("hush\n")
    given = {"bus.profile": "prod", "bus.configFile": str(file), "subscribe": "orders"}
    options = parse_source_options(given, is_stream=True)
    assert options.location.address == "p:1"
    assert options.location.settings["security_protocol"] == "SSL"
    assert options.location.settings["ssl_key_password"] == "hush"
    assert not options.location.settings.keys() & {"profile", "config_file"}
    assert "hush" not in repr(options)
    at_another = parse_source_options({**given, "kafka.bootstrap.servers": "q:1"}, is_stream=True)
    assert at_another.location.address == "q:1"
    for broken, said in (
        ({**given, "bus.profile": "prd"}, "bus.profile: .*expected one of its profiles, prod, found 'prd'"),
        ({**LEAST, "kafka.profile": "prod"}, "kafka.profile: use bus.profile"),
        (
            {"subscribe": "orders"},
            r"expected bus\.bootstrap\.servers, .*found neither",
        ),
    ):
        with pytest.raises(OptionError, match=said):
            parse_source_options(broken, is_stream=True)


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"])
def test_a_limit_of_triggers_in_a_batch_query_warns_as_in_spark(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parsed({name: "10"}, is_stream=False)
    assert name in caplog.text


@pytest.mark.parametrize("edge", ["starting", "ending"])
def test_a_time_for_all_comes_before_times_of_partitions_before_offsets(edge: str) -> None:
    field = {"starting": "start", "ending": "end"}[edge]
    given = {f"{edge}Offsets": '{"orders":{"0":5}}'}
    assert getattr(parsed(given, is_stream=False), field) == AtOffsets({ORDERS_0: 5})
    given[f"{edge}OffsetsByTimestamp"] = '{"orders":{"0":1000}}'
    assert getattr(parsed(given, is_stream=False), field) == AtTimes({ORDERS_0: 1000})
    given[f"{edge}Timestamp"] = "2000"
    assert getattr(parsed(given, is_stream=False), field) == AtTime(2000)


def test_the_log_is_at_one_place() -> None:
    with pytest.raises(OptionError, match=r"expected bus.bootstrap.servers, .* or bus.root, .*found neither"):
        parse_source_options({"subscribe": "orders"}, is_stream=False)
    with pytest.raises(OptionError, match=r"kafka.bootstrap.servers and bus.root: expected one of them"):
        parsed({"kafka.bootstrap.servers": "localhost:9094", "bus.root": "/data"}, is_stream=False)
    with pytest.raises(OptionError, match=r"bus.bootstrap.servers and kafka.bootstrap.servers: expected one of them"):
        parsed({"kafka.bootstrap.servers": "a:1", "bus.bootstrap.servers": "a:1"}, is_stream=False)
    assert parsed({"bus.root": "/data"}, is_stream=False).location.root == "/data"
    assert parsed({"bus.bootstrap.servers": "a:1,b:2"}, is_stream=False).location.address == "a:1,b:2"


def test_no_subscription_is_refused() -> None:
    with pytest.raises(OptionError, match="expected one of assign, subscribe and subscribePattern, found none"):
        parse_source_options({"bus.root": "/data"}, is_stream=True)


def test_names_of_options_are_the_same_in_any_case() -> None:
    given = {"KAFKA.BOOTSTRAP.SERVERS": "a:1", "SubScribe": "orders", "STARTINGOFFSETS": "earliest"}
    options = parse_source_options(given, is_stream=True)
    assert (options.location.address, options.start) == ("a:1", Edge.EARLIEST)


VALUES = {
    "assign": '{"orders":[0]}',
    "subscribe": "orders",
    "subscribePattern": "orders",
    "startingTimestamp": "1111",
    "startingOffsetsByTimestamp": '{"orders":{"0":1111}}',
    "startingOffsets": '{"orders":{"0":1111}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "endingTimestamp": "1111",
    "endingOffsetsByTimestamp": '{"orders":{"0":1111}}',
    "endingOffsets": '{"orders":{"0":1111}}',
    "kafka.bootstrap.servers": "a:1",
    "bus.bootstrap.servers": "a:1",
    "bus.root": "/data",
    "failOnDataLoss": "false",
    "includeHeaders": "true",
    "bus.progress": "false",
    "bus.splitPartitions": "true",
    "bus.pushFilters": "true",
    "bus.adoptKafkaOffsets": "true",
}


@pytest.mark.parametrize("name", OPTION_NAMES)
def test_an_option_counts_in_whichever_case_its_name_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1111").write_text('[1111]\nsecurity.protocol = "SSL"\n')  # for bus.profile and bus.configFile
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BUS_PROFILE", "1111")
    monkeypatch.setenv("BUS_CONFIG_FILE", "1111")
    value = VALUES.get(name, "1111")
    is_stream = not name.lower().removeprefix("bus.").startswith("ending")
    assert parsed({name: value}, is_stream=is_stream) != parsed({"bus.bootstrap.servers": "x:1"}, is_stream=is_stream)
    for spelling in (name.upper(), name.lower()):
        assert parsed({spelling: value}, is_stream=is_stream) == parsed({name: value}, is_stream=is_stream)


def test_bootstrap_servers_are_split_and_checked() -> None:
    with pytest.raises(OptionError, match=r"bus.bootstrap.servers: .*found 'nowhere'"):
        parsed({"bus.bootstrap.servers": "nowhere"}, is_stream=False)


def test_the_guide_names_every_option() -> None:
    guide = (Path(__file__).parents[4] / "docs" / "spark.md").read_text(encoding="utf-8")
    assert [name for name in OPTION_NAMES if f"`{name}`" not in guide] == []
