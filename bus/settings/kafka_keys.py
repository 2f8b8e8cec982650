"""Settings of Kafka's brokers that the bus does not have, and what to do instead.

For those who bring a server.properties: a setting that would do nothing is refused with the reason, not ignored.
"""

from __future__ import annotations

from collections.abc import Iterable

from bus.security.scram import MECHANISMS
from bus.settings.keys import AbsentKeys, unknown_key_message

_NO_REPLICAS = "each record is kept once, and to keep copies of it is up to the storage below the root"
_PEM = "keys and certificates are PEM files: set ssl.keystore.location, ssl.truststore.location and ssl.key.password"
_GRPC_TLS = "gRPC chooses among TLS 1.2 and 1.3; ciphers are those of the environment's GRPC_SSL_CIPHER_SUITES"
_LISTENERS = "set listen, or listeners for several"
_CALLBACKS = (
    "leave it out: tokens are checked by the settings sasl.oauthbearer.*, passwords against what `bus users` keeps"
)
_NO_TRANSACTIONS = "transactions have no such setting: timers end those that are too old, and their log is a topic"
_SYNCED = "a commit is synced to the disk before it is acknowledged, always"

_REASONS = {
    "advertised.host.name": "set advertise, or advertised.listeners",
    "advertised.port": "set advertise, or advertised.listeners",
    "background.threads": "maintenance has log.cleaner.threads",
    "client.quota.callback.class": "quotas are set by bus quotas, for users and client ids",
    "delete.topic.enable": "topics can always be deleted",
    "host.name": _LISTENERS,
    "log.dir": "the folder of the topics is root",
    "log.dirs": "the folder of the topics is root, one for each broker",
    "log.retention.hours": "set log.retention.ms",
    "log.retention.minutes": "set log.retention.ms",
    "log.roll.hours": "set log.roll.ms",
    "max.connections": "connections are gRPC's; streams have client.streams.count.max",
    "node.id": "set broker.id",
    "num.network.threads": "one event loop serves the network; what runs beside it has num.io.threads",
    "num.recovery.threads.per.data.dir": "partitions are opened in parallel by themselves",
    "offsets.topic.replication.factor": _NO_REPLICAS,
    "port": _LISTENERS,
    "process.roles": "a process is broker and controller",
    "sasl.login.callback.handler.class": _CALLBACKS,
    "sasl.server.callback.handler.class": _CALLBACKS,
    "security.inter.broker.protocol": "it is that of the listener that inter.broker.listener.name names",
    "ssl.ca.location": "set ssl.truststore.location",
    "ssl.endpoint.identification.algorithm": "the host in a certificate is always checked",
    "ssl.keystore.password": _PEM,
    "ssl.truststore.password": _PEM,
    "unclean.leader.election.enable": _NO_REPLICAS,
}
_REASONS_BY_PREFIX = {
    "config.providers.": "leave it out: config.providers names those that there are, env, file and directory",
    "controller.": "a process is broker and controller: there is no quorum to set up",
    "group.consumer.": "groups speak the classic protocol",
    "group.coordinator.": "groups are served by the event loop",
    "group.share.": "there are no share groups yet",
    "log.flush.": _SYNCED,
    "log.index.": "a partition is a Delta table, whose log says where each offset is",
    "metric.reporters": "the broker has no reporters of metrics yet",
    "metrics.": "the broker has no reporters of metrics yet",
    "controller.quota.": "quota.window.num and quota.window.size.seconds are those of all quotas",
    "quota.": "quotas are set by bus quotas, for users and client ids",
    "remote.log.": "there are no tiers: the table is the storage",
    "replica.": _NO_REPLICAS,
    "sasl.kerberos.": f"there is no Kerberos: sasl.enabled.mechanisms may be {', '.join(MECHANISMS)}",
    "sasl.": "logins have sasl.enabled.mechanisms, and users are made by `bus users create`",
    "security.": "TLS is gRPC's own and has no providers to choose from",
    "socket.": "sockets are gRPC's; the size of a request has socket.request.max.bytes",
    "ssl.cipher": _GRPC_TLS,
    "ssl.enabled": _GRPC_TLS,
    "ssl.protocol": _GRPC_TLS,
    "ssl.keystore.": _PEM,
    "ssl.truststore.": _PEM,
    "ssl.": "TLS has no such setting",
    "transaction.": _NO_TRANSACTIONS,
    "transactional.": _NO_TRANSACTIONS,
    "zookeeper.": "there is no ZooKeeper: the cluster's metadata is a log in the root",
}

KAFKA_KEYS = AbsentKeys(_REASONS, _REASONS_BY_PREFIX)


def absent_key_message(name: str, known: Iterable[str]) -> str:
    """Say why there is no such key, or which one may be meant."""
    reason = KAFKA_KEYS.reason(name)
    return unknown_key_message(name, known) if reason is None else f"{name}: no key of the bus: {reason}"
