from __future__ import annotations

import pytest

from bus.settings.broker import BROKER_CONFIGS
from bus.settings.kafka_keys import KAFKA_KEYS
from bus.settings.keys import ConfigError
from bus.settings.loading import load_broker_config


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("zookeeper.connect", "no key of the bus: there is no ZooKeeper"),
        ("log.dirs", "no key of the bus: the folder of the topics is root"),
        ("host.name", "set listen, or listeners for several"),
        ("unclean.leader.election.enable", "each record is kept once"),
        ("ssl.keystore.password", "keys and certificates are PEM files"),
        ("sasl.kerberos.service.name", "there is no Kerberos"),
        ("security.inter.broker.protocol", "it is that of the listener that inter.broker.listener.name names"),
        ("security.providers", "TLS is gRPC's own"),
        ("sasl.login.class", "users are made by `bus users create`"),
        ("transaction.state.log.replication.factor", "transactions have no such setting"),
        ("num.partitons", "did you mean num.partitions?"),
    ],
)
def test_a_key_that_is_not_there_is_refused_with_the_reason_or_the_nearest(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_broker_config(None, {name: "1"})


def test_no_key_that_is_there_has_a_reason_to_be_absent() -> None:
    assert not KAFKA_KEYS.reasons.keys() & BROKER_CONFIGS.keys()


def test_a_key_that_is_there_is_taken_though_its_family_is_absent() -> None:
    config = load_broker_config(None, {"socket.request.max.bytes": "20000000"})
    assert KAFKA_KEYS.reason("socket.request.max.bytes") is not None
    assert config.socket_request_max_bytes == 20_000_000
