"""Clients by TLS: records go in and out, and each way to fail is told at once with what to do about it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bus import Admin, BusError, Consumer, ConsumerRecord, NewTopic, Output, Producer, TopicPartition
from bus.broker import Broker
from bus.cli.main import cli
from bus.errors import ErrorCode
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.certificates import Authority

# A client that retried would take a minute.


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = BrokerConfig(
        listeners=("SSL://127.0.0.1:0", "MUTUAL://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0"),
        listener_security_protocol_map=("MUTUAL:SSL",),
        ssl_keystore_location=str(authority.issue("broker").both),
        ssl_truststore_location=str(authority.path),
        offsets_topic_num_partitions=1,
        group_initial_rebalance_delay_ms=0,
    )
    with running_broker(tmp_path_factory.mktemp("root"), config=config) as broker:
        yield broker


@pytest.fixture(scope="module")
def mutual(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = BrokerConfig(
        listeners=("SSL://127.0.0.1:0",),
        ssl_keystore_location=str(authority.issue("mutual").both),
        ssl_truststore_location=str(authority.path),
        ssl_client_auth="required",
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
        group_initial_rebalance_delay_ms=0,
    )
    with running_broker(tmp_path_factory.mktemp("mutual"), config=config) as broker:
        yield broker


def by_tls(authority: Authority, **more: Any) -> dict[str, Any]:
    return {"security_protocol": "SSL", "ssl_ca_location": str(authority.path), **more}


def address_of(broker: Broker, listener: str = "SSL") -> str:
    return f"127.0.0.1:{broker.ports[listener]}"


def test_records_go_in_and_out_by_tls(authority: Authority, broker: Broker) -> None:
    settings = by_tls(authority)
    with Producer(address_of(broker), **settings) as producer:
        for number in range(5):
            producer.send("t", value=b"%d" % number)
    with Consumer(address_of(broker), group_id="g", auto_offset_reset="earliest", **settings) as consumer:
        consumer.subscribe(["t"])
        found: list[bytes | None] = []
        while len(found) < 5:
            found += [record.value for record in consumer.poll(timeout_ms=5_000)]
    assert found == [b"%d" % number for number in range(5)]


def test_client_with_an_encrypted_key_gets_in(authority: Authority, mutual: Broker) -> None:
    own = authority.issue("alice", password="hush")
    pair = {"ssl_certificate_location": str(own.certificate), "ssl_key_location": str(own.key)}
    with Admin(address_of(mutual), **by_tls(authority, **pair, ssl_key_password="hush")) as admin:
        assert admin.list_topics() == []
    with pytest.raises(BusError, match="found an encrypted one and no password") as refused:
        Admin(address_of(mutual), **by_tls(authority, **pair))
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_settings_hold_keys_and_certificates_in_place_of_files(authority: Authority, tmp_path: Path) -> None:
    """The settings are those of the broker and of each client, by Kafka's and librdkafka's names; in a file of
    properties they are on one line."""
    own, alice = (authority.issue(name, password="hush") for name in ("inline", "alice"))
    config = BrokerConfig(
        listeners=("SSL://127.0.0.1:0",),
        ssl_keystore_certificate_chain=own.certificate.read_text(),
        ssl_keystore_key=own.key.read_text(),
        ssl_truststore_certificates=authority.path.read_text(),
        ssl_key_password="hush",
        ssl_client_auth="required",
    )
    texts = (authority.path.read_text(), alice.certificate.read_text(), alice.key.read_text())
    kafka = ("ssl_truststore_certificates", "ssl_keystore_certificate_chain", "ssl_keystore_key")
    with running_broker(tmp_path / "root", config=config) as broker:
        for names in (kafka, ("ssl_ca_pem", "ssl_certificate_pem", "ssl_key_pem")):
            settings = dict(zip(names, texts, strict=True))
            with Admin(address_of(broker), security_protocol="SSL", ssl_key_password="hush", **settings) as admin:
                hidden = {one.name: one.value for one in admin.describe_configs(kind="broker") if "ssl" in one.name}
        assert {hidden[name.replace("_", ".")] for name in kafka} == {"(hidden)"}
        properties = tmp_path / "client.properties"
        lines = [f"{name.replace('_', '.')}={' '.join(text.split(chr(10)))}" for name, text in settings.items()]
        chain = lines[0].replace(" ", " \\\n  ")  # as people write it for Kafka
        head = "security.protocol=SSL\nssl.key.password=hush\n"
        properties.write_text(head + "\n".join([chain, *lines[1:]]) + "\n")
        properties.chmod(0o600)
        command = ["topics", "list", "--address", address_of(broker), "--command-config", str(properties)]
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0, done.output


def refusal(address: str, **settings: Any) -> str:
    """Return the refusal, which is the same for all three clients."""
    messages = set()
    with pytest.raises(BusError) as refused, Admin(address, **settings) as admin:
        admin.list_topics()
    messages.add(refused.value.message)
    with pytest.raises(BusError) as refused, Consumer(address, **settings) as consumer:
        consumer.partitions_for("t")
    messages.add(refused.value.message)
    with Consumer(address, group_id="g", **settings) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(BusError) as refused:
            consumer.poll(timeout_ms=20_000)
    messages.add(refused.value.message)
    with pytest.raises(BusError) as refused, Producer(address, **settings) as producer:
        producer.partitions_for("t")
    messages.add(refused.value.message)
    assert refused.value.code is ErrorCode.NETWORK_EXCEPTION
    [message] = messages
    return message


def test_each_failure_is_told_at_once(authority: Authority, broker: Broker, mutual: Broker, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign")
    eve = foreign.issue("eve")
    by_port = address_of(broker).rpartition(":")[2]
    cases: list[tuple[str, dict[str, Any], str]] = [
        (address_of(broker), {}, "the listener expects TLS: set security_protocol to SSL"),
        (address_of(broker, "PLAINTEXT"), by_tls(authority), "the listener speaks no TLS: set security_protocol to"),
        (address_of(broker), by_tls(foreign), "this client does not trust the authority that signed the broker's"),
        (
            address_of(broker),
            by_tls(Authority(tmp_path / "other", "other")),
            "this client does not trust the authority that signed the broker's",
        ),
        (f"localhost:{by_port}", by_tls(authority), "the broker's certificate is for another host"),
        (
            address_of(mutual),
            by_tls(authority),
            "the listener expects a certificate of the client: set",
        ),
        (
            address_of(mutual),
            by_tls(authority, ssl_keystore_location=str(eve.both)),
            "the broker has refused the certificate of this client",
        ),
    ]
    for address, settings, said in cases:
        message = refusal(address, **settings)
        assert message.startswith(f"the broker at {address} cannot be reached: {said}"), message


def test_certificate_that_was_changed_is_used_by_the_next_connection(
    authority: Authority, mutual: Broker, tmp_path: Path
) -> None:
    own = authority.issue("bob")
    settings = by_tls(authority, ssl_keystore_location=str(own.both))
    foreign = Authority(tmp_path / "foreign").issue("bob")
    good = own.both.read_bytes()
    own.both.write_bytes(foreign.both.read_bytes())
    with Admin(address_of(mutual), **settings) as admin:
        with pytest.raises(BusError, match="the broker has refused the certificate"):
            admin.list_topics()
        own.both.write_bytes(good)
        assert admin.list_topics() == []


def test_commands_reach_a_broker_by_tls(authority: Authority, broker: Broker, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"# for the bus\nsecurity.protocol=SSL\nssl.ca.location={authority.path}\n")
    address = ["--address", address_of(broker)]
    by_properties = ["-X", "security.protocol=SSL", "-X", f"ssl.ca.location={authority.path}"]
    runner = CliRunner()
    for how in (["--command-config", str(config)], by_properties):
        done = runner.invoke(cli, ["topics", "list", *address, *how])
        assert done.exit_code == 0, done.output
        done = runner.invoke(cli, ["produce", "t", *address, *how, "-X", "linger.ms=1"], input="x\n")
        assert done.exit_code == 0, done.output
    environment = {"BUS_SECURITY_PROTOCOL": "SSL", "BUS_SSL_CA_LOCATION": str(authority.path)}
    done = runner.invoke(cli, ["groups", "list", *address], env=environment)
    assert done.exit_code == 0, done.output
    done = runner.invoke(cli, ["topics", "list", *address])
    assert done.exit_code == 1
    assert "the listener expects TLS" in done.output
    assert "is a broker running?" not in done.output
    done = runner.invoke(cli, ["topics", "list", *address, "-X", "linger.ms=1"])
    assert done.exit_code == 2
    assert "expected settings of the connection, security.protocol" in done.output.replace("\n", " ")


def test_commands_take_address_and_connection_from_a_profile(
    authority: Authority, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BUS_ADDRESS", "BUS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "config.toml"
    connection = f'security.protocol = "SSL"\nssl.ca.location = "{authority.path}"\n'
    nowhere = "127.0.0.1:1"
    file.write_text(
        f'[here]\nbootstrap.servers = "{address_of(broker)}"\n{connection}'
        f'[away]\nbootstrap.servers = "{nowhere}"\n{connection}[typo]\nssl.ca.locaton = "hush"\n'
    )
    environment = {"BUS_CONFIG_FILE": str(file)}
    runner = CliRunner()
    sources: list[tuple[list[str], dict[str, str]]] = [
        (["--profile", "here"], {}),
        ([], {"BUS_PROFILE": "here"}),
        (["--profile", "here"], {"BUS_PROFILE": "away"}),
        (["--profile", "away"], {"BUS_ADDRESS": address_of(broker)}),
        (["--address", address_of(broker), "--profile", "away"], {}),
    ]
    for arguments, more in sources:
        done = runner.invoke(cli, ["topics", "list", *arguments], env={**environment, **more})
        assert done.exit_code == 0, done.output
        done = runner.invoke(cli, ["produce", "t", *arguments], input="x\n", env={**environment, **more})
        assert done.exit_code == 0, done.output
    done = runner.invoke(
        cli, ["topics", "list", "-X", "security.protocol=PLAINTEXT", "--profile", "here"], env=environment
    )
    assert "the listener expects TLS" in done.output
    done = runner.invoke(cli, ["topics", "list", "--profile", "typo"], env=environment)
    assert done.exit_code == 2
    assert "found 'ssl.ca.locaton'; did you mean 'ssl.ca.location'?" in done.output
    assert "hush" not in done.output


def test_options_of_a_command_win_over_its_file_wherever_they_stand(
    authority: Authority, broker: Broker, tmp_path: Path
) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"security.protocol=SSL\nssl.ca.location={authority.path}\n")
    for order in (1, -1):
        how = [("--command-config", str(config)), ("-X", "security.protocol=PLAINTEXT")][::order]
        given = [text for pair in how for text in pair]
        done = CliRunner().invoke(cli, ["topics", "list", "--address", address_of(broker), *given])
        assert "the listener expects TLS" in done.output


def test_password_on_a_command_line_is_warned_of(authority: Authority, broker: Broker) -> None:
    given = ["-X", "security.protocol=SSL", "-X", f"ssl.ca.location={authority.path}", "-X", "ssl.key.password=hush"]
    done = CliRunner().invoke(cli, ["topics", "list", "--address", address_of(broker), *given])
    assert "ssl.key.password on the command line is seen by all" in done.output
    assert "hush" not in done.output


def test_run_sends_its_output_and_dead_letters_as_its_consumer_reads(authority: Authority, mutual: Broker) -> None:
    own = authority.issue("runner")
    pair = {"ssl_certificate_location": str(own.certificate), "ssl_key_location": str(own.key)}
    settings = by_tls(authority, **pair)
    address = address_of(mutual)
    with Admin(address, **settings) as admin:
        admin.create_topics([NewTopic(name, partitions=1) for name in ("orders", "invoices")])
    with Producer(address, **settings) as producer:
        for value in (b"good", b"bad"):
            producer.send("orders", value)
    for name, ids in (("plain", {}), ("transactional", {"transactional_id": "billing"})):
        stop = threading.Event()

        def handle(record: ConsumerRecord, output: Output | None = None, stop: threading.Event = stop) -> None:
            if output is not None:
                output.send("invoices", record.value)
            if record.value == "bad":
                stop.set()
                raise ValueError("bad")

        consumer = Consumer(
            address, group_id=name, auto_offset_reset="earliest", value_deserializer=bytes.decode, **settings
        )
        consumer.subscribe(["orders"])
        options = {"producer_configs": {"value_serializer": str.encode}, **ids} if ids else {}
        summary = consumer.run(handle, stop=stop, on_error="dead_letter", **options)
        assert (summary.handled, summary.dead_lettered) == (1, 1)
    assert values_of(address, "orders.dlq", **settings) == [b"bad", b"bad"]
    assert values_of(address, "invoices", **settings) == [b"good"]


def values_of(address: str, topic: str, **settings: Any) -> list[bytes | None]:
    with Consumer(address, auto_offset_reset="earliest", **settings) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        found: list[bytes | None] = []
        while len(found) < end:
            found += [record.value for record in consumer.poll(timeout_ms=5_000)]
    return found
