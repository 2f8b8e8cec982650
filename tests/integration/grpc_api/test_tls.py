"""Listeners with TLS: who gets in, who they are, certificates that change, and brokers that reach one another by it."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from bus.broker import Broker
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1.bus_pb2_grpc import BusStub
from bus.runtime.logs import TextFormatter
from bus.settings.broker import BrokerConfig
from bus.settings.keys import ConfigError
from bus.settings.loading import load_broker_config
from tests.integration.grpc_api.test_listeners import wait_for_all
from tests.support.broker_thread import running_broker
from tests.support.certificates import Authority, Issued


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


def settings(authority: Authority, *, broker_id: int = 0, client_auth: str = "required") -> BrokerConfig:
    return BrokerConfig(
        broker_id=broker_id,
        listeners=("SSL://127.0.0.1:0",),
        ssl_keystore_location=str(authority.issue(f"broker{broker_id}").both),
        ssl_truststore_location=str(authority.path),
        ssl_client_auth=client_auth,
        offsets_topic_num_partitions=2,
    )


def serving(tmp_path: Path, config: BrokerConfig) -> AbstractContextManager[Broker]:
    return running_broker(tmp_path / "root", config=config)


def channel_to(broker: Broker, authority: Authority, shown: Issued | None, listener: str | None = None) -> grpc.Channel:
    pair = (None, None) if shown is None else (shown.key.read_bytes(), shown.certificate.read_bytes())
    credentials = grpc.ssl_channel_credentials(authority.path.read_bytes(), *pair)
    port = broker.port if listener is None else broker.ports[listener]
    return grpc.secure_channel(f"127.0.0.1:{port}", credentials)


def ask(channel: grpc.Channel) -> Any:
    return BusStub(channel).Metadata(pb.MetadataRequest(), timeout=40)


def test_without_client_certificates_everybody_who_trusts_the_broker_gets_in(
    authority: Authority, tmp_path: Path
) -> None:
    with serving(tmp_path, settings(authority, client_auth="none")) as broker:
        with channel_to(broker, authority, None) as channel:
            assert [one.port for one in ask(channel).brokers] == [broker.port]
        for refused in (
            channel_to(broker, Authority(tmp_path / "foreign"), None),
            grpc.insecure_channel(f"127.0.0.1:{broker.port}"),
        ):
            with refused, pytest.raises(grpc.RpcError):
                ask(refused)


def test_only_certificates_of_the_authority_get_in_and_give_the_principal(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(TextFormatter().format(record))

    log = logging.getLogger("bus.grpc_api.server.guards")
    log.addHandler(handler := Lines())
    try:
        with caplog.at_level(logging.DEBUG, log.name), serving(tmp_path, settings(authority)) as broker:
            with channel_to(broker, authority, authority.issue("alice")) as channel:
                ask(channel)
            refused = (None, Authority(tmp_path / "foreign").issue("eve"), authority.issue("old", days=(-2, -1)))
            for shown in refused:
                with channel_to(broker, authority, shown) as channel, pytest.raises(grpc.RpcError):
                    ask(channel)
    finally:
        log.removeHandler(handler)
    found = [line for line in lines if "MetadataRequest" in line]
    assert len(found) == 1
    assert found[0].endswith("principal=User:CN=alice,O=Bus\\, Ltd")


def test_name_that_no_rule_is_about_is_refused(authority: Authority, tmp_path: Path) -> None:
    config = replace(settings(authority), ssl_principal_mapping_rules="RULE:^CN=(alice),.*$/$1/")
    with serving(tmp_path, config) as broker:
        with channel_to(broker, authority, authority.issue("alice")) as channel:
            ask(channel)
        with channel_to(broker, authority, authority.issue("bob")) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                ask(channel)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.RpcError) as refused:
                list(BusStub(channel).Fetch(iter([pb.FetchRequest()])))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_spiffe_id_is_the_principal_and_a_foreign_or_ambiguous_one_gets_nowhere(
    authority: Authority, tmp_path: Path
) -> None:
    config = replace(
        settings(authority),
        ssl_principal_mapping_rules="SPIFFE:bus.example",
        authorizer_class_name="acl",
        super_users="User:spiffe://bus.example/admin",
    )
    unknown = "no rule of ssl.principal.mapping.rules is about a certificate of"
    cases: list[tuple[tuple[str, ...], bool, str]] = [
        (("spiffe://bus.example/admin",), True, ""),
        (("spiffe://bus.example/other",), True, "User:spiffe://bus.example/other may not Create topic"),
        (("spiffe://foreign.example/admin",), False, unknown),
        (("spiffe://bus.example/admin", "spiffe://bus.example/b"), False, "names it alone, found 2 URIs"),
        ((), False, unknown),
    ]
    with serving(tmp_path, config) as broker:
        for number, (uris, is_known, said) in enumerate(cases):
            with channel_to(broker, authority, authority.issue(f"client{number}", uris=uris)) as channel:
                request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=f"t{number}", partitions=1)])
                if is_known:
                    [topic] = BusStub(channel).CreateTopics(request, timeout=40).topics
                    assert topic.error_message.startswith(said)
                    assert bool(topic.error_message) == bool(said)
                    continue
                with pytest.raises(grpc.RpcError) as refused:
                    BusStub(channel).CreateTopics(request, timeout=40)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert said in refused.value.details()


def test_new_certificates_are_for_new_connections_and_bad_ones_for_none(authority: Authority, tmp_path: Path) -> None:
    config = settings(authority, client_auth="none")
    keystore = Path(config.ssl_keystore_location)
    with serving(tmp_path, config) as broker, channel_to(broker, authority, None) as before:
        ask(before)
        keystore.write_bytes(keystore.read_bytes()[:200])
        [keys] = broker.keys.values()
        keys.look()
        with channel_to(broker, authority, None) as channel:
            ask(channel)
        other = Authority(tmp_path / "other")
        keystore.write_bytes(other.issue("broker1").both.read_bytes())
        keys.look()
        with channel_to(broker, authority, None) as channel:  # the other name is refused
            ask(channel)
        keystore.write_bytes(other.issue("broker0").both.read_bytes())
        keys.look()
        with channel_to(broker, other, None) as channel:
            ask(channel)
        with channel_to(broker, authority, None) as channel, pytest.raises(grpc.RpcError):
            ask(channel)
        ask(before)


def test_listeners_have_certificates_authorities_and_rules_of_their_own(authority: Authority, tmp_path: Path) -> None:
    partners = Authority(tmp_path / "partners", "partners")
    own = {
        "ssl.keystore.location": str(partners.issue("broker").both),
        "ssl.truststore.location": str(partners.path),
        "ssl.client.auth": "required",
    }
    config = load_broker_config(
        None,
        {
            "listeners": "SSL://127.0.0.1:0,PARTNERS://127.0.0.1:0",
            "listener.security.protocol.map": "PARTNERS:SSL",
            "ssl.keystore.location": str(authority.issue("broker").both),
            "ssl.truststore.location": str(authority.path),
            "ssl.principal.mapping.rules": "RULE:^CN=(nobody),.*$/$1/",
            "listener.name.partners.ssl.principal.mapping.rules": "RULE:^CN=([^,]*),.*$/$1/",
            **{f"listener.name.partners.{name}": value for name, value in own.items()},
        },
    )
    with serving(tmp_path, config) as broker:
        with channel_to(broker, authority, None) as channel:
            ask(channel)
        with channel_to(broker, partners, partners.issue("alice"), "PARTNERS") as channel:
            ask(channel)
        for trusted, shown, listener in (
            (partners, None, "SSL"),
            (partners, None, "PARTNERS"),
            (partners, authority.issue("bob"), "PARTNERS"),
            (authority, partners.issue("alice"), "PARTNERS"),
        ):
            with channel_to(broker, trusted, shown, listener) as channel, pytest.raises(grpc.RpcError):
                ask(channel)
        renewed = Authority(tmp_path / "renewed")
        Path(own["ssl.keystore.location"]).write_bytes(renewed.issue("broker").both.read_bytes())
        assert broker.keys.keys() == {"SSL", "PARTNERS"}
        for keys in broker.keys.values():
            keys.look()
        with channel_to(broker, renewed, partners.issue("alice"), "PARTNERS") as channel:
            ask(channel)
        with channel_to(broker, authority, None) as channel:
            ask(channel)


def test_brokers_reach_one_another_by_tls(authority: Authority, tmp_path: Path) -> None:
    with ExitStack() as stack:
        brokers = [stack.enter_context(serving(tmp_path, settings(authority, broker_id=number))) for number in range(2)]
        wait_for_all(*brokers)
        with channel_to(brokers[1], authority, authority.issue("alice")) as channel:
            # Broker 0 is the controller, so broker 1 sends this on.
            created = BusStub(channel).CreateTopics(
                pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=2)]), timeout=20
            )
            assert [topic.error_code for topic in created.topics] == [0]
            assert {one.broker_id: one.port for one in ask(channel).brokers} == {
                number: broker.port for number, broker in enumerate(brokers)
            }


def test_start_without_usable_certificates_is_refused(authority: Authority, tmp_path: Path) -> None:
    expired = replace(
        settings(authority), ssl_keystore_location=str(authority.issue("old", days=(-2, -1)).both), root=str(tmp_path)
    )
    with pytest.raises(ConfigError, match="expected a certificate that is valid now"):
        Broker(expired)
