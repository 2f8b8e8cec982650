"""Options of the sink: taken, or refused by name with what was expected and what was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.spark.sink.sink_options import Application, RowOrder, SinkOptions, parse_sink_options
from bus.spark.sink.stamped_writer import task_identity
from bus.spark.source.source_options import OptionError

PROFILE = '[prod]\nbootstrap.servers = "p:1"\nsecurity.protocol = "SSL"\nssl.key.password.file = "password"\n'
HERE = {"bus.bootstrap.servers": "localhost:9092"}


def parse(is_stream: bool = True, **given: str) -> SinkOptions:
    return parse_sink_options({**HERE, **given}, is_stream=is_stream)


def test_defaults_are_exactly_once_and_the_topic_of_each_row() -> None:
    options = parse()
    assert options.addresses == ("localhost:9092",)
    assert (options.topic, options.order, options.include_headers) == (None, RowOrder.KEY, True)
    assert (options.config.acks, options.config.enable_idempotence) == (-1, True)
    assert options.application is None


def test_job_moves_from_kafka_by_its_names_in_any_case() -> None:
    options = parse_sink_options(
        {
            "KAFKA.bootstrap.servers": "a:1, b:2",
            "Topic": "orders",
            "checkpointLocation": "/c",
            "queryName": "copy of orders",
            "kafka.acks": "ALL",
            "kafka.enable.idempotence": "true",
            "kafka.compression.type": "zstd",
            "kafka.request.timeout.ms": "1000",
            "kafka.max.request.size": "2000",
            "kafka.security.protocol": "PLAINTEXT",
        },
        is_stream=True,
    )
    assert (options.addresses, options.topic) == (("a:1", "b:2"), "orders")
    assert (options.config.compression_type, options.config.request_timeout_ms) == ("zstd", 1000)
    assert options.part_bytes == 2000


@pytest.mark.parametrize("text", ["all", "ALL", "-1"])
def test_every_way_to_ask_for_all_acknowledgements_is_taken(text: str) -> None:
    assert parse(**{"kafka.acks": text}).config.acks == -1


def test_headers_may_be_left_out() -> None:
    assert not parse(includeHeaders="False").include_headers


def test_batch_write_may_say_who_writes_which_version() -> None:
    options = parse(is_stream=False, **{"bus.txnAppId": "nightly", "bus.txnVersion": "64003"})
    assert options.application == Application("nightly", 64_003)
    identity = task_identity(options.application, 7)
    assert (identity.producer_name, identity.producer_epoch) == ("spark.nightly.7.2", 3)


def test_epochs_fit_in_what_a_producer_has_and_no_two_batches_share_a_name_and_an_epoch() -> None:
    identities = [task_identity(Application("q", batch), 0) for batch in (0, 31_999, 32_000, 64_000)]
    found = [(identity.producer_name, identity.producer_epoch) for identity in identities]
    assert found == [("spark.q.0.0", 0), ("spark.q.0.0", 31_999), ("spark.q.0.1", 0), ("spark.q.0.2", 0)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topci": "t"}, "topci: expected an option of the bus sink, found an unknown one; did you mean topic?"),
        ({"path": "t"}, "path: expected save() or start() without a path, found 't'; the option is topic"),
        ({"topic": " "}, "topic: expected a value, found ' '"),
        ({"bus.root": "/r"}, "bus.root: expected bus.bootstrap.servers, since a broker takes the records"),
        ({"bus.bootstrap.servers": "nowhere"}, "expected an address as host:port, found 'nowhere'"),
        ({"kafka.bootstrap.servers": "a:1"}, "found bus.bootstrap.servers and kafka.bootstrap.servers"),
        ({"includeHeaders": "yes"}, "includeHeaders: expected true or false, found 'yes'"),
        ({"bus.order": "none"}, "bus.order: expected key, content or rows, found 'none'"),
        ({"bus.txnAppId": "a"}, "bus.txnAppId: expected bus.txnVersion with it, found none"),
        ({"bus.txnVersion": "1"}, "bus.txnVersion: expected bus.txnAppId with it, found none"),
        ({"bus.txnAppId": "a b", "bus.txnVersion": "1"}, "bus.txnAppId: expected 1 to 200 of the characters"),
        ({"bus.txnAppId": "a", "bus.txnVersion": "-1"}, "bus.txnVersion: expected a number from 0 on, found -1"),
        ({"bus.txnAppId": "a", "bus.txnVersion": "x"}, "bus.txnVersion: expected a whole number, found 'x'"),
        ({"kafka.acks": "1"}, "kafka.acks: expected all, found '1'"),
        ({"kafka.enable.idempotence": "false"}, "kafka.enable.idempotence: expected true, found 'false'"),
        ({"kafka.linger.ms": "5"}, "kafka.linger.ms: a task sends what it has in requests of kafka.max.request.size"),
        ({"kafka.key.serializer": "s"}, "kafka.key.serializer: keys and values are columns of text or binary"),
        ({"kafka.value.serializer": "s"}, "kafka.value.serializer: keys and values are columns of text or binary"),
        ({"kafka.interceptor.classes": "i"}, "kafka.interceptor.classes: interceptors would run in Spark's tasks"),
        ({"kafka.max.block.ms": "5000"}, "kafka.max.block.ms: how long a task waits for a broker is kafka.delivery"),
        ({"kafka.transactional.id": "x"}, "kafka.transactional.id: a task is a producer with a name of its own"),
        ({"kafka.partitioner.class": "x"}, "kafka.partitioner.class: a row goes where its column partition says"),
        ({"kafka.compression.type": "brotli"}, "compression_type: expected one of 'none'"),
        ({"kafka.request.timeout.ms": "soon"}, "kafka.request.timeout.ms: expected a whole number, found 'soon'"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "sasl_mechanism: expected security_protocol=SASL_PLAINTEXT or SASL_SSL"),
        ({"kafka.max.in.flight.requests.per.connection": "6"}, "of at most 5, found 6"),
        ({"kafka.fetch.min.bytes": "6"}, "which is one of a consumer"),
    ],
)
def test_wrong_option_is_refused_with_what_was_expected(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse(is_stream=False, **given)
    assert message in str(refused.value)


def test_address_is_needed() -> None:
    with pytest.raises(OptionError, match=r"expected bus\.bootstrap\.servers, a broker's address, found neither"):
        parse_sink_options({"topic": "t"}, is_stream=False)


def test_profile_has_the_address_and_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BUS_ADDRESS", "BUS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "config.toml"
    file.write_text(PROFILE)
    (tmp_path / "password").write_text("hush\n")
    given = {"bus.profile": "prod", "bus.configFile": str(file), "topic": "t"}
    options = parse_sink_options(given, is_stream=True)
    assert options.addresses == ("p:1",)
    assert (options.config.security_protocol, options.config.ssl_key_password) == ("SSL", "hush")
    assert "hush" not in repr(options)
    assert parse_sink_options({**given, "bus.bootstrap.servers": "q:1"}, is_stream=True).addresses == ("q:1",)
    with pytest.raises(OptionError, match="expected one of its profiles, prod, found 'prd'"):
        parse_sink_options({**given, "bus.profile": "prd"}, is_stream=True)
    with pytest.raises(OptionError, match=r"kafka\.profile: use bus.profile"):
        parse_sink_options({**given, "kafka.profile": "prod"}, is_stream=True)


def test_streaming_query_numbers_its_batches_itself() -> None:
    with pytest.raises(OptionError, match=r"bus\.txnAppId: a streaming query has its id"):
        parse(**{"bus.txnAppId": "a", "bus.txnVersion": "1"})


def test_transaction_of_a_batch_has_rows_as_they_come_and_a_time_out() -> None:
    options = parse(**{"bus.transactional": "TRUE", "kafka.transaction.timeout.ms": "90000"})
    assert options.is_transactional
    assert (options.order, options.config.transaction_timeout_ms) == (RowOrder.ROWS, 90_000)
    assert not parse().is_transactional


@pytest.mark.parametrize(
    ("is_stream", "given", "message"),
    [
        (True, {"bus.transactional": "yes"}, "bus.transactional: expected true or false"),
        (True, {"bus.transactional": "true", "bus.order": "key"}, "bus.order: expected none with bus.transactional"),
        (False, {"bus.transactional": "true"}, "bus.transactional: expected bus.txnAppId and bus.txnVersion"),
        (True, {"kafka.transaction.timeout.ms": "90000"}, "timeout.ms: expected bus.transactional=true with it"),
        (True, {"bus.transactional": "true", "kafka.transactional.id": "a"}, "kafka.transactional.id: a task is"),
    ],
)
def test_transaction_that_cannot_hold_is_refused(is_stream: bool, given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(is_stream, **given)
