"""The settings of a broker: what each key means, and what they say of its listeners.

Guards one promise: every key here has an effect. `bus.settings.loading` reads them, and checks that they fit together.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from bus.descriptions import ConfigDescription
from bus.model import SSL, KeyFiles, NameChanges
from bus.security.acl_decisions import AclPolicy
from bus.security.acls import PRINCIPAL_TYPE, check_principal
from bus.security.oauth.token_settings import shown_url
from bus.security.scram import MECHANISMS, SCRAM_MECHANISMS
from bus.settings.files import PROVIDERS
from bus.settings.keys import (
    INT_MAX,
    AnyOf,
    Between,
    ConfigError,
    ConfigValue,
    Key,
    NotEmpty,
    OneOf,
    ZeroOrAtLeast,
    boolean,
    describe_key,
    double,
    field_name,
    integer,
    key_field,
    keys_of,
    long,
    string,
    strings,
)
from bus.settings.listener_overrides import (
    PREFIX,
    base_name_of,
    settings_of_listener,
)
from bus.settings.listeners import (
    HostPort,
    Listener,
    find_listener,
    parse_listeners,
    single_listener,
    ssl_key_files,
)
from bus.settings.topic import TOPIC_CONFIGS

MEMORY_BYTES_MIN = 384 * 1024 * 1024  # a broker that has no clients takes a third of it
PARTITIONS_MAX = 10_000  # for one topic; every partition is a table, so a typing error must not create millions


def _topic_default(name: str) -> Any:
    """The default of a topic config, with its type and range."""
    key = TOPIC_CONFIGS[name]
    return key_field(key.takes, key.default, f"Default of the topic config {name}.", stands_for=name)


# Values of replica.selector.class.
LEADER_SELECTOR = "leader"
RACK_SELECTOR = "rack"


# Values of authorizer.class.name; the second one is a synonym for configurations of Kafka.
ACL_AUTHORIZER = "acl"
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings of one broker: Kafka's names with underscores for dots. All that is known of a key stands here.

    Made by `bus.settings.loading`, values are checked; made by hand, they are taken as they are.
    """

    root: str = string("./bus-data", "Where topics and cluster metadata are kept: a local folder.", NotEmpty())
    broker_id: int = integer(0, "Number of this broker in the cluster.", Between(0))
    listen: str = string("127.0.0.1:9094", "Address to serve on; port 0 takes a free one.", HostPort())
    advertise: str = string(
        "", "Address that clients are told to connect to; empty: that of listen.", HostPort(is_optional=True)
    )
    listeners: tuple[str, ...] = strings(
        (), "Listeners in place of listen, NAME://HOST:PORT each; a name is a protocol or stands in the map."
    )
    listener_security_protocol_map: tuple[str, ...] = strings(
        (), "The protocol of each listener whose name is none, NAME:PROTOCOL each."
    )
    advertised_listeners: tuple[str, ...] = strings(
        (), "Addresses that clients of a listener are told to connect to, if they come another way."
    )
    inter_broker_listener_name: str = string(
        "", "The listener by which brokers reach one another; empty: the first one."
    )
    ssl_keystore_location: str = string(
        "", "PEM file with the private key and the certificates of listeners with TLS, its own first."
    )
    ssl_keystore_type: str = string("PEM", "Form of ssl.keystore.location.", OneOf(("PEM",)))
    ssl_keystore_key: str = string(
        "", "The private key as PEM itself, in place of a file, beside ssl.keystore.certificate.chain.", is_secret=True
    )
    ssl_keystore_certificate_chain: str = string(
        "", "The certificates as PEM themselves, in place of a file, the own one first.", is_secret=True
    )
    ssl_certificate_location: str = string("", "PEM file with the certificates alone, beside ssl.key.location.")
    ssl_key_location: str = string("", "PEM file with the private key of ssl.certificate.location.")
    ssl_key_password: str = string("", "Password of the private key; empty: it has none.", is_secret=True)
    ssl_truststore_location: str = string(
        "", "PEM file with the authorities whose certificates are trusted, of clients and of other brokers."
    )
    ssl_truststore_certificates: str = string(
        "", "The trusted authorities as PEM themselves, in place of a file.", is_secret=True
    )
    ssl_truststore_type: str = string("PEM", "Form of ssl.truststore.location.", OneOf(("PEM",)))
    ssl_allow_dn_changes: bool = boolean(
        False, "Whether a certificate that takes the place of another one in its file may have another name."
    )
    ssl_allow_san_changes: bool = boolean(
        False, "Whether a certificate that takes the place of another one in its file may lack alternative names of it."
    )
    ssl_client_auth: str = string(
        "none",
        "Whether clients of listeners with TLS have to show a certificate. Kafka's requested: use two listeners.",
        OneOf(("none", "required")),
    )
    ssl_principal_mapping_rules: str = string(
        "DEFAULT",
        "How a client's certificate becomes its principal: Kafka's rules for its name, SPIFFE for its SPIFFE id.",
    )
    config_providers: tuple[str, ...] = strings(
        (),
        "Where variables in other settings may come from: env (${env:NAME}), file (${file:/PATH:KEY}), directory "
        "(${directory:/PATH:FILE}).",
        AnyOf(PROVIDERS),
    )
    sasl_enabled_mechanisms: tuple[str, ...] = strings(
        tuple(SCRAM_MECHANISMS),
        f"How clients of listeners with SASL may log in: {', '.join(MECHANISMS)}.",
        AnyOf(MECHANISMS),
    )
    sasl_mechanism_inter_broker_protocol: str = string(
        "SCRAM-SHA-512",
        "How this broker logs in at others, if their listener is one with SASL.",
        OneOf(MECHANISMS),
    )
    sasl_jaas_config: str = string(
        "",
        'What this broker logs in with at others: ...ScramLoginModule required username="u" password="p"; of JAAS, or '
        '...OAuthBearerLoginModule required clientId="c" clientSecret="s" scope="s"; for OAUTHBEARER.',
        is_secret=True,
    )
    sasl_oauthbearer_jwks_endpoint_url: str = string(
        "",
        "Where the identity provider publishes its keys, for OAUTHBEARER: https://, or file:// for a file.",
        shown_as=shown_url,
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = long(
        3_600_000, "How often the keys of the identity provider are read.", Between(1_000)
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = long(
        100, "The first pause after the keys could not be read.", Between(1)
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = long(
        10_000, "The longest pause after the keys could not be read.", Between(1)
    )
    sasl_oauthbearer_expected_issuer: str = string("", "Who has to have issued a token (iss).")
    sasl_oauthbearer_expected_audience: tuple[str, ...] = strings(
        (), "For whom a token has to be issued (aud), one of these."
    )
    sasl_oauthbearer_expected_scope: tuple[str, ...] = strings((), "Which scopes a token must have, all of these.")
    sasl_oauthbearer_clock_skew_seconds: int = integer(
        30, "How far the clocks of broker and identity provider may be apart.", Between(0, 3_600)
    )
    sasl_oauthbearer_scope_claim_name: str = string("scope", "The claim that has the scopes of a token.", NotEmpty())
    sasl_oauthbearer_sub_claim_name: str = string("sub", "The claim that has the name of the principal.", NotEmpty())
    sasl_oauthbearer_principal_prefix: str = string(
        "", "What stands before the name of a token in its principal: partner: for User:partner:alice."
    )
    sasl_oauthbearer_allow_super_users: bool = boolean(
        False,
        "Whether tokens may make principals of super.users and of the brokers. They may at the listener by which "
        "brokers log in at one another by tokens.",
    )
    sasl_oauthbearer_token_endpoint_url: str = string(
        "",
        "Where this broker gets the token that it shows to others: https://, or file:// for a file with a token.",
        shown_as=shown_url,
    )
    sasl_oauthbearer_header_urlencode: bool = boolean(
        False,
        "Whether clientId and clientSecret go to the token endpoint URL-encoded, as RFC 6749 (2.3.1) has it.",
    )
    sasl_oauthbearer_allow_insecure_urls: bool = boolean(
        False, "Whether the identity provider may be asked by http:// at another machine."
    )
    https_ca_location: str = string(
        "", "PEM file with the authorities trusted of the identity provider; empty: those of the system."
    )
    connections_max_reauth_ms: int = long(
        3_600_000, "How long a login holds; then the client logs in again, which the SDK does in time.", Between(1_000)
    )
    connection_failed_authentication_delay_ms: int = integer(
        100, "How long after its question a login that fails is answered.", Between(0)
    )
    allow_insecure_listeners: bool = boolean(
        False, "Whether listeners without authentication may be reached from other machines."
    )
    authorizer_class_name: str = string(
        "",
        f"Who may do what: empty for everyone everything, acl for the ACLs of the cluster ({STANDARD_AUTHORIZER}).",
        OneOf(("", ACL_AUTHORIZER, STANDARD_AUTHORIZER)),
    )
    super_users: str = string(
        "", "Principals that may do everything, also what an ACL denies, separated by semicolons: User:alice;User:bob."
    )
    allow_everyone_if_no_acl_found: bool = boolean(False, "Whether everyone may do everything to what no ACL names.")
    broker_rack: str = string(
        "", "Rack or zone of this broker; replicas of a partition are spread over racks. Empty: none."
    )
    replica_selector_class: str = string(
        LEADER_SELECTOR,
        "Whom consumers that name their rack are sent to for reads: leader, or rack for a replica in their rack.",
        OneOf((LEADER_SELECTOR, RACK_SELECTOR)),
    )
    num_partitions: int = integer(
        1, "Partitions of a new topic whose creator names no number.", Between(1, PARTITIONS_MAX)
    )
    default_replication_factor: int = integer(
        3, "Brokers that are to follow each partition of a new topic, or all if there are fewer.", Between(1)
    )
    auto_create_topics_enable: bool = boolean(
        True, "Whether a topic is created when a producer or a consumer that may create it asks for it by name."
    )
    min_insync_replicas: int = _topic_default("min.insync.replicas")
    message_max_bytes: int = _topic_default("max.message.bytes")
    compression_type: str = _topic_default("compression.type")
    log_message_timestamp_type: str = _topic_default("message.timestamp.type")
    log_message_timestamp_before_max_ms: int = _topic_default("message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: int = _topic_default("message.timestamp.after.max.ms")
    commit_interval_ms: int = _topic_default("commit.interval.ms")
    commit_burst: int = _topic_default("commit.burst")
    log_cleanup_policy: tuple[str, ...] = _topic_default("cleanup.policy")
    log_retention_ms: int = _topic_default("retention.ms")
    log_retention_bytes: int = _topic_default("retention.bytes")
    log_segment_bytes: int = _topic_default("segment.bytes")
    log_roll_ms: int = _topic_default("segment.ms")
    log_segment_delete_delay_ms: int = _topic_default("file.delete.delay.ms")
    log_cleaner_delete_retention_ms: int = _topic_default("delete.retention.ms")
    log_cleaner_min_cleanable_ratio: float = _topic_default("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = _topic_default("min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = _topic_default("max.compaction.lag.ms")
    delta_log_retention_ms: int = _topic_default("delta.log.retention.ms")
    delta_log_versions_max: int = _topic_default("delta.log.versions.max")
    log_retention_check_interval_ms: int = long(
        300_000,
        "How often every partition is looked at for what its age makes due: retention, rolling, compaction, cleaning.",
        Between(1),
    )
    log_cleaner_threads: int = integer(
        1, "Threads that roll, compact and clean partitions; one partition never takes two.", Between(1)
    )
    log_cleaner_backoff_ms: int = long(15_000, "How long maintenance of a partition rests after it failed.", Between(0))
    log_cleaner_io_max_bytes_per_second: float = double(
        sys.float_info.max,
        "Most bytes that maintenance of all partitions together reads and writes in a second.",
        Between(1),
    )
    socket_request_max_bytes: int = integer(16_777_216, "Largest request of records that the broker takes.", Between(1))
    fetch_max_bytes: int = integer(
        33_554_432,
        "Most bytes of one fetch response, even if the client asks for more; one batch is always given.",
        Between(1024),
    )
    request_timeout_ms: int = integer(
        30_000, "How long a produce request waits for its commit if the client names no timeout.", Between(1)
    )
    queued_max_bytes: int = long(
        67_108_864,
        "Bytes that may wait for a commit in one partition; more is refused until there is room.",
        Between(1),
    )
    queued_max_request_bytes: int = long(
        268_435_456,
        "Bytes of requests that may wait for their answers or commits, of all clients; each has a share of them.",
        Between(1),
    )
    producer_id_expiration_ms: int = integer(
        86_400_000,
        "How long a partition keeps an idle idempotent producer in memory and in checkpoints; later, its rows decide "
        "about its repeats.",
        Between(1),
    )
    transactional_id_expiration_ms: int = integer(
        604_800_000,
        "How long an unused transactional id, or name of a producer, is kept; later it gets another producer id.",
        Between(1),
    )
    transaction_max_timeout_ms: int = integer(
        900_000, "Longest time-out of a transaction that a producer may ask for.", Between(1)
    )
    transaction_state_log_num_partitions: int = integer(
        8, "Partitions of __transaction_state when it is created; later it has no effect.", Between(1, PARTITIONS_MAX)
    )
    transaction_staged_max_bytes: int = long(
        134_217_728,
        "Most bytes of one transaction in one partition, whose commit writes them as one version; larger ones abort.",
        Between(1),
    )
    transaction_staged_cache_bytes: int = long(
        134_217_728,
        "Memory for the batches of open transactions of all partitions; beyond it they are in files only. 0: none.",
        Between(0),
    )
    transactional_ids_count_max: int = integer(
        1_000_000, "Transactional ids that the broker coordinates, those included that are not used.", Between(1)
    )
    transaction_partitions_count_max: int = integer(
        5_000_000,
        "Partitions of the last transactions of all transactional ids that the broker coordinates.",
        Between(1),
    )
    offsets_topic_num_partitions: int = integer(
        8, "Partitions of __consumer_offsets when it is created; later it has no effect.", Between(1, PARTITIONS_MAX)
    )
    offsets_retention_minutes: int = integer(
        10_080,
        "How long committed offsets stay after their group has become empty, or after the commit if it has no members.",
        Between(1),
    )
    offsets_retention_check_interval_ms: int = long(
        600_000, "How often committed offsets are looked through for those to forget.", Between(1)
    )
    offset_metadata_max_bytes: int = integer(
        4_096, "Largest text that may be committed with an offset, in bytes.", Between(0)
    )
    group_initial_rebalance_delay_ms: int = integer(
        -1,
        "How long the first rebalance of an empty group waits for more members, again for each that comes. -1: not at "
        "all while the cluster has one broker, else 3 s.",
        Between(-1),
    )
    group_min_session_timeout_ms: int = integer(
        6_000, "Shortest session timeout that a member of a group may ask for.", Between(0)
    )
    group_max_session_timeout_ms: int = integer(
        1_800_000, "Longest session timeout that a member of a group may ask for.", Between(0)
    )
    group_max_size: int = integer(INT_MAX, "Most members of one group.", Between(1))
    group_members_count_max: int = integer(
        100_000,
        "Members of all groups that the broker coordinates, those included that have an id and have not joined yet.",
        Between(1),
    )
    group_members_bytes_max: int = long(
        268_435_456,
        "Bytes of what members of all groups say when they join, and of what they are assigned.",
        Between(1),
    )
    group_members_per_client_max: int = integer(
        20_000,
        "New members that one client's address may have within the session timeout that they ask for.",
        Between(1),
    )
    group_offsets_count_max: int = integer(
        5_000_000,
        "Committed offsets of all groups that the broker coordinates, one for each group and partition.",
        Between(1),
    )
    memory_max_bytes: int = long(
        0,
        "Memory that the broker is to fit into, such as a container's: bounds that no setting names are lowered to it; "
        "0: they stay.",
        ZeroOrAtLeast(MEMORY_BYTES_MIN),
    )
    log_cache_bytes: int = long(
        134_217_728,
        "Memory for the newest batches of all partitions, so that readers at the tail touch no file; 0: none.",
        Between(0),
    )
    broker_heartbeat_interval_ms: int = integer(
        500, "How often a broker tells the controller that it is alive.", Between(1)
    )
    broker_session_timeout_ms: int = integer(
        2_000, "How long a broker may be silent before the controller gives what it leads to others.", Between(1)
    )
    replica_lag_time_max_ms: int = long(
        30_000, "A replica that has not caught up with its leader for so long is not in sync.", Between(1)
    )
    auto_leader_rebalance_enable: bool = boolean(
        True, "Whether the controller gives leadership back to a preferred leader that has returned."
    )
    leader_imbalance_check_interval_seconds: int = long(
        300, "How often the controller looks for brokers that lead less than they are preferred for.", Between(1)
    )
    leader_imbalance_per_broker_percentage: int = integer(
        10,
        "Above this share of partitions that a broker is preferred for and does not lead, it is elected for them.",
        Between(0, 100),
    )
    quota_window_num: int = integer(
        11,
        "Windows over which quotas of clients are measured; an idle client may use all but one of them at once.",
        Between(2),
    )
    quota_window_size_seconds: int = integer(1, "Length of one of these windows.", Between(1))
    connections_max_idle_ms: int = long(
        600_000, "How long a connection may be open without a call before it is closed.", Between(1_000, INT_MAX)
    )
    client_streams_count_max: int = integer(
        2_000, "Streams that one principal may have open at this broker from one address.", Between(1)
    )
    audit_enable: bool = boolean(
        False, "Whether denials, logins and changes, and how often what was read and written, are kept in __audit."
    )
    num_io_threads: int = integer(8, "Threads that read and write the storage.", Between(1))
    controlled_shutdown_timeout_ms: int = integer(
        30_000, "How long a shutdown waits for the commits in flight and their answers.", Between(0)
    )
    # The name of a listener -> its own settings, by key.
    listener_overrides: Mapping[str, Mapping[str, ConfigValue]] = field(default_factory=dict, repr=False)

    @property
    def serving_listeners(self) -> tuple[Listener, ...]:
        """The listeners of the broker, in order; never empty. Raises `ConfigError`."""
        if not self.listeners:
            return single_listener(self.listen, self.advertise)
        return parse_listeners(
            self.listeners, protocols=self.listener_security_protocol_map, advertised=self.advertised_listeners
        )

    @property
    def has_logins(self) -> bool:
        """True if users log in at any listener. Raises `ConfigError`."""
        return any(one.has_logins for one in self.serving_listeners)

    def of_listener(self, listener: Listener) -> BrokerConfig:
        """The settings with those that the listener has of its own. Raises `ConfigError`."""
        own: dict[str, Any] = settings_of_listener(self.listener_overrides.get(listener.name, {}))
        return replace(self, **own) if own else self

    def needs_client_certificate(self, listener: Listener) -> bool:
        return listener.protocol == SSL and self.of_listener(listener).ssl_client_auth == "required"

    @property
    def open_listeners(self) -> Sequence[Listener]:
        """Those without authentication. Raises `ConfigError`."""
        return [one for one in self.serving_listeners if not one.has_logins and not self.needs_client_certificate(one)]

    @property
    def acl_policy(self) -> AclPolicy | None:
        """None without an authorizer. Raises `ConfigError`."""
        if not self.authorizer_class_name:
            return None
        return AclPolicy(_parse_principals(self.super_users), self.allow_everyone_if_no_acl_found)

    @property
    def key_files(self) -> Mapping[str, KeyFiles]:
        """The key files of each listener with TLS, by its name. Raises `ConfigError`."""
        return {one.name: self._key_files_of(one) for one in self.serving_listeners if one.has_tls}

    def name_changes_of(self, listener: Listener) -> NameChanges:
        """Return the changes that the names in the listener's certificate may undergo while the broker runs."""
        own = self.of_listener(listener)
        return NameChanges(of_subject=own.ssl_allow_dn_changes, of_alternatives=own.ssl_allow_san_changes)

    def _key_files_of(self, listener: Listener) -> KeyFiles:
        own = self.of_listener(listener)
        forms = {own.ssl_keystore_type, own.ssl_truststore_type}
        assert forms == {"PEM"}, f"expected PEM, found {forms}"
        settings = {
            "ssl.keystore.location": own.ssl_keystore_location,
            "ssl.keystore.key": own.ssl_keystore_key,
            "ssl.keystore.certificate.chain": own.ssl_keystore_certificate_chain,
            "ssl.certificate.location": own.ssl_certificate_location,
            "ssl.key.location": own.ssl_key_location,
            "ssl.key.password": own.ssl_key_password,
            "ssl.truststore.location": own.ssl_truststore_location,
            "ssl.truststore.certificates": own.ssl_truststore_certificates,
        }
        needs_trusted = self.needs_client_certificate(listener) or listener == self.inter_broker_listener
        try:
            return ssl_key_files(settings, needs_trusted=needs_trusted)
        except ConfigError as error:
            raise ConfigError(f"listener {listener.name}: {error}") from None

    @property
    def inter_broker_listener(self) -> Listener:
        """The one by which other brokers reach this one. Raises `ConfigError`."""
        return find_listener(self.serving_listeners, self.inter_broker_listener_name)


BROKER_CONFIGS = keys_of(BrokerConfig)
# The topic config -> the broker's config that is its default.
TOPIC_DEFAULTS: Mapping[str, str] = MappingProxyType(
    {one.metadata["stands_for"]: one.name for one in fields(BrokerConfig) if one.metadata.get("stands_for") is not None}
)


def describe_broker_config(config: BrokerConfig) -> list[ConfigDescription]:
    """Every setting of the broker, those of single listeners last. They are read once, at its start, so all of them are
    read-only."""
    entries = []
    for key in BROKER_CONFIGS.values():
        value = getattr(config, field_name(key.name))
        entries.append(_describe(key, value, is_default=value == key.default))
    for listener in config.serving_listeners:
        for name, value in config.listener_overrides.get(listener.name, {}).items():
            key = replace(BROKER_CONFIGS[base_name_of(name)], name=f"{PREFIX}{listener.name.lower()}.{name}")
            entries.append(_describe(key, value, is_default=False))
    return entries


def _describe(key: Key, value: ConfigValue, *, is_default: bool) -> ConfigDescription:
    shown, default = key.format(value), key.format(key.default)
    return describe_key(key, value=shown, default=default, is_default=is_default, is_read_only=True)


def _parse_principals(text: str) -> frozenset[str]:
    principals = [part.strip() for part in text.split(";") if part.strip()]
    for principal in principals:
        refused = check_principal(principal)
        if refused is not None:
            raise ConfigError(f"super.users: {refused.message}")
        if f",{PRINCIPAL_TYPE}:" in principal.replace(" ", ""):
            raise ConfigError(f"super.users: expected semicolons between principals, found {principal!r}")
    return frozenset(principals)
