"""Decisions about the cluster's topics, views, quotas and ACLs, and the records that carry them out.

Commands in, `Step`s out: records to be made durable and applied, and the answer. Guards one promise: a record that
a decision gives can be applied to the state it was decided on, and a refused command gives none. Ids come in
as arguments, and so does the broker that leads new partitions at level 0; at a higher level they are spread over the
brokers (partition_placement.py). Decides on one command; a caller that decides several before one append applies
each one's records before the next decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from bus.cluster_metadata import cluster_records as records
from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import ViewCreated, ViewDeleted
from bus.cluster_metadata.cluster_state import (
    BUS_VERSION,
    LEVEL_OF_MANAGED_TABLES,
    LEVEL_OF_SECURITY,
    ClusterState,
    Topic,
)
from bus.cluster_metadata.configs import (
    KEPT_CONFIGS,
    ConfigOperation,
    alter_topic_configs,
    check_not_internal,
    check_topic_name,
    collision_key,
    is_internal_topic,
    normalize_topic_configs,
    resolve_topic_config,
)
from bus.cluster_metadata.partition_placement import (
    MIN_INSYNC_REPLICAS,
    check_replica_assignment,
    place_partitions,
    place_partitions_as_assigned,
    place_topic,
    place_topic_as_assigned,
)
from bus.errors import ErrorCode, Refused, count_of, show_range
from bus.json_views import JsonView, SchemaError, check_view
from bus.model import (
    AUDIT_TOPIC,
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    Step,
    TopicPartition,
)
from bus.security.acl_index import AclIndex
from bus.security.acls import ANY_NAME, AclBinding, AclBindingFilter, AclResourceType, PatternType, check_acl
from bus.security.quotas import AlterQuotas, Quotas, alter_quotas, encode_entity, encode_quotas
from bus.settings.broker import PARTITIONS_MAX, BrokerConfig

NOTHING_KEPT: Mapping[str, str] = MappingProxyType({})
DEFAULT_PARTITIONS = (-1, 0)  # both mean: as many as num.partitions says
_DEFAULT_REPLICAS = (-1, 0)
# One that a table or a broker names may not be higher: as many elections as that are left then.
LEADER_EPOCH_MAX = 2**30
_OWN_TOPICS = (CLUSTER_METADATA_TOPIC, CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, AUDIT_TOPIC)
# The configs of an internal topic that users may alter: the writing of its files, and how long old ones are kept. The
# others decide what a coordinator finds again.
INTERNAL_CONFIGS = frozenset(
    {"commit.burst", "commit.interval.ms", "compression.type", "delta.log.retention.ms", "file.delete.delay.ms"}
)
# Nothing depends on old rows of the audit but who reads them.
_AUDIT_CONFIGS = INTERNAL_CONFIGS | {"retention.bytes", "retention.ms"}
FOREIGN_WRITERS = "delta.foreign.writers.enable"
_KEPT_KEYS = frozenset(map(collision_key, _OWN_TOPICS))


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """`replication_factor`: -1 or 0 for as many replicas as `default.replication.factor` says, as far as there are
    brokers. `replica_assignment` stands for both numbers: the brokers of each partition, the preferred leader first."""

    name: str
    partitions: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    validate_only: bool = False  # answer as if, change nothing; the same in the other commands
    replication_factor: int = -1
    replica_assignment: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    name: str


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    name: str
    partitions: int  # the new total
    validate_only: bool = False
    replica_assignment: Sequence[Sequence[int]] = ()  # the replicas of each added partition, the preferred leader first


@dataclass(frozen=True, slots=True)
class AlterTopicConfigs:
    name: str
    operations: Sequence[ConfigOperation]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The topic as it is after the command; with `validate_only` on creation, `topic_id` is empty."""

    name: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


TopicStep = Step[ClusterRecord, TopicResult | Refused]


def decide_create_topic(
    state: ClusterState,
    command: CreateTopic,
    *,
    topic_id: str,
    leader_id: int,
    partitions_default: int,
    broker: BrokerConfig | None = None,
    is_case_blind: bool = False,
) -> TopicStep:
    """A new topic, its leaders and replicas, and a TopicConfigChanged for each config. `topic_id` has never been used,
    `leader_id` is registered. `broker` has the defaults of configs, and how many replicas a partition has.
    `is_case_blind`: the storage takes names for one that differ in case only.

    Refused: INVALID_TOPIC_EXCEPTION (name illegal, internal or colliding), TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS,
    INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG, UNSUPPORTED_VERSION (a config that brokers
    of this level do not know).
    """
    name = command.name
    refused = check_topic_name(name) or check_not_internal(name) or _check_kept(name) or _check_free(state, name)
    if refused is None and is_case_blind:
        refused = _check_folder(state, name)
    if refused is not None:
        return Step(refused)
    partitions = partitions_default if command.partitions in DEFAULT_PARTITIONS else command.partitions
    if command.replica_assignment:
        partitions = len(command.replica_assignment)
    if not 1 <= partitions <= PARTITIONS_MAX:
        return _invalid_partitions(f"expected 1 to {PARTITIONS_MAX} partitions of {name}, found {partitions}")
    configs = normalize_topic_configs(command.configs, broker)
    if isinstance(configs, Refused):
        return Step(configs)
    refused = _check_config_level(state, configs)
    if refused is not None:
        return Step(refused)
    refused = _check_placing(state, command)
    if refused is not None:
        return Step(refused)
    if command.replica_assignment:
        placed = place_topic_as_assigned(state, name, topic_id, command.replica_assignment)
    else:
        is_default = command.replication_factor in _DEFAULT_REPLICAS
        factor = _replication_factor(broker) if is_default else command.replication_factor
        placed = place_topic(
            state,
            name,
            topic_id,
            partitions,
            leader_id=leader_id,
            replication_factor=factor,
            may_be_fenced=not is_default,
        )
    refused = _check_replicas(records.apply_all(state, placed).topics[name], configs)
    if refused is not None:
        return Step(refused)
    if command.validate_only:
        return Step(TopicResult(name, "", partitions, configs))
    settings = (records.TopicConfigChanged(name, topic_id, key, value) for key, value in configs.items())
    return Step(TopicResult(name, topic_id, partitions, configs), (*placed, *settings))


def decide_auto_create_topic(
    state: ClusterState,
    name: str,
    *,
    topic_id: str,
    leader_id: int,
    partitions_default: int,
    broker: BrokerConfig | None = None,
    is_case_blind: bool = False,
) -> TopicStep:
    """Decide on a topic that a client requests by name and may create: return the topic if it exists, or create it with
    the broker's defaults. Refused: INVALID_TOPIC_EXCEPTION (name illegal, internal or colliding);
    UNKNOWN_TOPIC_OR_PARTITION for a missing topic of the bus's own, which the bus creates when it needs it."""
    topic = state.topics.get(name)
    if topic is not None:
        return Step(_result(topic))
    if name in _OWN_TOPICS:
        return Step(Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected an existing topic, found {name!r}"))
    return decide_create_topic(
        state,
        CreateTopic(name),
        topic_id=topic_id,
        leader_id=leader_id,
        partitions_default=partitions_default,
        broker=broker,
        is_case_blind=is_case_blind,
    )


def decide_create_internal_topic(
    state: ClusterState,
    name: str,
    *,
    topic_id: str,
    leader_id: int,
    partitions: int,
    configs: Mapping[str, str],
    kept: Mapping[str, str] = NOTHING_KEPT,
    broker: BrokerConfig | None = None,
) -> TopicStep:
    """A topic of the bus's own, the first time that it is needed; no change if it is there. `name` is internal,
    `partitions` and `configs` are valid, and `kept` has keys of `KEPT_CONFIGS`. Refused: INVALID_TOPIC_EXCEPTION
    (another topic's name collides)."""
    topic = state.topics.get(name)
    if topic is not None:
        return Step(_result(topic))
    refused = _check_free(state, name)
    if refused is not None:
        return Step(refused)
    normal = normalize_topic_configs(configs)
    assert not isinstance(normal, Refused), f"{name}: {normal}"
    assert kept.keys() <= KEPT_CONFIGS, f"{name}: {kept}"
    configs = {**normal, **kept}
    settings = (records.TopicConfigChanged(name, topic_id, key, value) for key, value in configs.items())
    placed = place_topic(
        state, name, topic_id, partitions, leader_id=leader_id, replication_factor=_replication_factor(broker)
    )
    return Step(TopicResult(name, topic_id, partitions, configs), (*placed, *settings))


def decide_delete_topic(state: ClusterState, command: DeleteTopic) -> TopicStep:
    """Gone for users at once; its id stays in `deleted_topics` until `decide_topic_files_deleted`. Refused:
    INVALID_TOPIC_EXCEPTION (internal), UNKNOWN_TOPIC_OR_PARTITION."""
    topic = _changeable_topic(state, command.name)
    if isinstance(topic, Refused):
        return Step(topic)
    return Step(_result(topic), (records.TopicDeleted(topic.name, topic.topic_id),))


def decide_topic_files_deleted(state: ClusterState, topic_id: str) -> Step[ClusterRecord, None]:
    """After all files of a deleted topic are gone. Safe to repeat."""
    return Step(None, (records.TopicFilesDeleted(topic_id),) if topic_id in state.deleted_topics else ())


def decide_create_partitions(
    state: ClusterState, command: CreatePartitions, *, leader_id: int, broker: BrokerConfig | None = None
) -> TopicStep:
    """More partitions, never fewer and never as many: their offsets would be lost, or nothing be done. Refused:
    INVALID_TOPIC_EXCEPTION (internal), UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT."""
    topic = _changeable_topic(state, command.name)
    if isinstance(topic, Refused):
        return Step(topic)
    count = len(topic.partitions)
    if command.partitions <= count:
        return _invalid_partitions(
            f"topic {topic.name} has {count_of(count, 'partition')}, expected more, found {command.partitions}"
        )
    if command.partitions > PARTITIONS_MAX:
        return _invalid_partitions(
            f"expected at most {PARTITIONS_MAX} partitions of {topic.name}, found {command.partitions}"
        )
    assignment = command.replica_assignment
    if assignment:
        refused = _check_added(state, topic, command)
        if refused is not None:
            return Step(refused)
    result = TopicResult(topic.name, topic.topic_id, command.partitions, topic.configs)
    if command.validate_only:
        return Step(result)
    if assignment:
        return Step(result, tuple(place_partitions_as_assigned(state, topic, assignment)))
    factor = _replication_factor(broker)
    placed = place_partitions(state, topic, command.partitions, leader_id=leader_id, replication_factor=factor)
    return Step(result, tuple(placed))


def decide_alter_topic_configs(
    state: ClusterState, command: AlterTopicConfigs, *, broker: BrokerConfig | None = None
) -> TopicStep:
    """All operations or none; a record for each override that is another one afterwards. Refused:
    INVALID_TOPIC_EXCEPTION (internal, and a config that is not one of those that may be altered there, see
    `INTERNAL_CONFIGS`), UNKNOWN_TOPIC_OR_PARTITION, INVALID_CONFIG, INVALID_REQUEST (a config named twice),
    UNSUPPORTED_VERSION (a config that brokers of this level do not know)."""
    topic = _configurable_topic(state, command)
    if isinstance(topic, Refused):
        return Step(topic)
    kept = {name: value for name, value in topic.configs.items() if name in KEPT_CONFIGS}
    overrides = {name: value for name, value in topic.configs.items() if name not in kept}
    configs = alter_topic_configs(overrides, command.operations, broker)
    if isinstance(configs, Refused):
        return Step(configs)
    refused = _check_config_level(state, configs)
    if refused is not None:
        return Step(refused)
    configs = {**configs, **kept}
    if configs.get(MIN_INSYNC_REPLICAS) != topic.configs.get(MIN_INSYNC_REPLICAS):
        refused = _check_replicas(topic, configs)
        if refused is not None:
            return Step(refused)
    result = TopicResult(topic.name, topic.topic_id, len(topic.partitions), configs)
    return Step(result, () if command.validate_only else tuple(_config_changes(topic, configs)))


@dataclass(frozen=True, slots=True)
class RaiseLeaderEpoch:
    """The leader of a partition, in the life that has this broker epoch, has found leader epoch `above` in its log."""

    partition: TopicPartition
    leader_id: int
    broker_epoch: int  # 0 at feature level 0
    above: int


def decide_raise_leader_epoch(state: ClusterState, command: RaiseLeaderEpoch) -> Step[ClusterRecord, int | Refused]:
    """Lets the broker lead a partition at an epoch above the one that its log has: the metadata may be older than the
    log, after a repair or out of a backup. The response is the epoch.

    Refused: STALE_BROKER_EPOCH (another life of the broker is registered, or none), NOT_LEADER_OR_FOLLOWER,
    INVALID_REQUEST (an epoch above which there is none).
    """
    name, leader_id, above = command.partition, command.leader_id, command.above
    broker = state.brokers.get(leader_id)
    if broker is None or broker.broker_epoch != command.broker_epoch:
        expected = "a registered broker" if broker is None else f"epoch {broker.broker_epoch} of broker {leader_id}"
        message = f"expected {expected}, found broker {leader_id} at epoch {command.broker_epoch}"
        return Step(Refused(ErrorCode.STALE_BROKER_EPOCH, message))
    topic, leadership = state.topics.get(name.topic), state.leadership(name)
    if topic is None or leadership is None or leadership.leader_id != leader_id:
        return Step(Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name} is not led by broker {leader_id}"))
    if leadership.leader_epoch > above:
        return Step(leadership.leader_epoch)
    if above >= LEADER_EPOCH_MAX:
        message = f"{name}: expected a leader epoch below {LEADER_EPOCH_MAX}, found {above}"
        return Step(Refused(ErrorCode.INVALID_REQUEST, message))
    return Step(above + 1, (records.LeaderChanged(topic.name, topic.topic_id, name.partition, leader_id, above + 1),))


def _replication_factor(broker: BrokerConfig | None) -> int:
    return (broker or BrokerConfig()).default_replication_factor


def _check_kept(name: str) -> Refused | None:
    """Names that would stand in the way of an internal topic, which may come later."""
    if collision_key(name) not in _KEPT_KEYS:
        return None
    return Refused(
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"expected a name that differs in more than '.' and '_' from the bus's own topics, found {name}",
    )


def _check_free(state: ClusterState, name: str) -> Refused | None:
    if name in state.topics:
        return Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")
    other = state.collisions.get(collision_key(name))
    if other is not None:
        return Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"expected a name that differs in more than '.' and '_', found {name}, which collides with topic {other}",
        )
    return None


def _check_folder(state: ClusterState, name: str) -> Refused | None:
    """Refuse a name whose folder is another topic's: the new topic's tables would take the place of the other's."""
    other = next((topic for topic in state.topics if topic.casefold() == name.casefold()), None)
    if other is None:
        return None
    return Refused(
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"expected a name that differs in more than case, since the root's file system does not tell upper from lower "
        f"case, found {name}, whose folder is that of topic {other}",
    )


def _changeable_topic(state: ClusterState, name: str) -> Topic | Refused:
    refused = check_not_internal(name)
    if refused is not None:
        return refused
    topic = state.topics.get(name)
    if topic is None:
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"expected an existing topic, found none named {name!r}")
    return topic


def _check_added(state: ClusterState, topic: Topic, command: CreatePartitions) -> Refused | None:
    lists, first = command.replica_assignment, len(topic.partitions)
    added = command.partitions - first
    if len(lists) != added:
        expected = f"expected the replicas of each of the {count_of(added, 'partition')} that are added"
        return Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"topic {topic.name}: {expected}, found {len(lists)}")
    return check_replica_assignment(state, topic.name, lists, first=first)


def _configurable_topic(state: ClusterState, command: AlterTopicConfigs) -> Topic | Refused:
    if not is_internal_topic(command.name):
        return _changeable_topic(state, command.name)
    configs = _AUDIT_CONFIGS if command.name == AUDIT_TOPIC else INTERNAL_CONFIGS
    unsafe = sorted({operation.name for operation in command.operations} - configs)
    if unsafe:
        alterable = ", ".join(sorted(configs))
        expected = f"expected one of the configs of {command.name} that can be altered, {alterable}"
        return Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{expected}, found {unsafe[0]}: the others belong to the bus itself",
        )
    topic = state.topics.get(command.name)
    if topic is None:
        expected = f"expected an existing topic, found none named {command.name!r}"
        return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, expected)
    return topic


def _check_placing(state: ClusterState, command: CreateTopic) -> Refused | None:
    """Check the number of replicas, or the brokers, that the creator requests."""
    factor, count = command.replication_factor, max(1, len(state.brokers))
    if not command.replica_assignment:
        if factor in _DEFAULT_REPLICAS or 1 <= factor <= count:
            return None
        expected = f"expected a replication factor {show_range(1, count)}, the brokers of the cluster"
        return Refused(ErrorCode.INVALID_REPLICATION_FACTOR, f"topic {command.name}: {expected}, found {factor}")
    if command.partitions not in DEFAULT_PARTITIONS or factor not in _DEFAULT_REPLICAS:
        found = f"{command.partitions} partitions and a replication factor of {factor} beside it"
        expected = "expected a replica assignment alone, which says both numbers"
        return Refused(ErrorCode.INVALID_REQUEST, f"topic {command.name}: {expected}, found {found}")
    return check_replica_assignment(state, command.name, command.replica_assignment)


def check_managed_tables(state: ClusterState) -> Refused | None:
    """Return UNSUPPORTED_VERSION if there may be brokers that cannot open a managed table."""
    if state.level >= LEVEL_OF_MANAGED_TABLES:
        return None
    return Refused(
        ErrorCode.UNSUPPORTED_VERSION,
        f"tables that keep other Delta engines from writing need {BUS_VERSION} {LEVEL_OF_MANAGED_TABLES}, found "
        f"{state.level}: run bus cluster features upgrade once all brokers are of this version",
    )


def are_tables_managed(state: ClusterState, configs: Mapping[str, str]) -> bool:
    """True if new tables of a topic with these overrides keep other Delta engines from writing."""
    return check_managed_tables(state) is None and not resolve_topic_config(configs).delta_foreign_writers_enable


def _check_config_level(state: ClusterState, configs: Mapping[str, str]) -> Refused | None:
    """Check that every broker knows the configs."""
    return check_managed_tables(state) if FOREIGN_WRITERS in configs else None


def _check_replicas(topic: Topic, configs: Mapping[str, str]) -> Refused | None:
    """Refuse a min.insync.replicas above the number of replicas: nothing could be written with acks=all."""
    count = min(len(topic.replicas(number)) for number in range(len(topic.partitions)))
    wanted = int(configs.get(MIN_INSYNC_REPLICAS, 1))
    if wanted <= count:
        return None
    expected = f"expected {MIN_INSYNC_REPLICAS} {show_range(1, count)}, the replicas of a partition"
    return Refused(ErrorCode.INVALID_CONFIG, f"topic {topic.name}: {expected}, found {wanted}")


def _config_changes(topic: Topic, configs: Mapping[str, str]) -> Iterator[records.TopicConfigChanged]:
    for name in sorted(topic.configs.keys() | configs.keys()):
        if topic.configs.get(name) != configs.get(name):
            yield records.TopicConfigChanged(topic.name, topic.topic_id, name, configs.get(name))


def _result(topic: Topic) -> TopicResult:
    return TopicResult(topic.name, topic.topic_id, len(topic.partitions), topic.configs)


def _invalid_partitions(message: str) -> TopicStep:
    return Step(Refused(ErrorCode.INVALID_PARTITIONS, message))


def decide_alter_quotas(state: ClusterState, command: AlterQuotas) -> Step[ClusterRecord, Quotas | Refused]:
    """The response has the quotas of the entity from then on.

    Refused: INVALID_REQUEST (a name, a value, an entity that cannot be), POLICY_VIOLATION (too many entities),
    UNSUPPORTED_VERSION (the level has no record for quotas).
    """
    before = state.quotas.get(command.entity, {})
    after = alter_quotas(state.quotas, command)
    if isinstance(after, Refused) or command.validate_only or after == before:
        return Step(after)
    if state.level < LEVEL_OF_SECURITY:
        return Step(_refuse_level(state.level))
    record = records.ClientQuotaChanged(encode_entity(command.entity), encode_quotas(after) if after else None)
    return Step(after, (record,))


def _refuse_level(level: int) -> Refused:
    return Refused(
        ErrorCode.UNSUPPORTED_VERSION,
        f"quotas need {BUS_VERSION} {LEVEL_OF_SECURITY}, found {level}: run bus cluster features upgrade once all "
        "brokers are of this version",
    )


# As in Kafka, adding an existing binding, or removing by a filter that matches none, changes nothing and is no error.

ACLS_MAX = 100_000
# Comparisons of ACLs with filters in one call: half a second of the event loop.
_COMPARISONS_MAX = 1_000_000
# The number of bindings in one answer, 20 MiB of the longest ones: another broker that sends the call on takes no more.
_REMOVED_MAX = 10_000


def decide_create_acls(
    state: ClusterState, acls: Sequence[AclBinding]
) -> Step[ClusterRecord, list[Refused | None] | Refused]:
    """Add ACLs. The response has, for each binding, None if it exists now, or the reason why it was not added. Refused:
    INVALID_REQUEST (there can be no such binding), POLICY_VIOLATION (too many); as a whole: UNSUPPORTED_VERSION."""
    refused = _check_level(state)
    if refused is not None:
        return Step(refused)
    added: dict[AclBinding, None] = {}
    answers: list[Refused | None] = []
    for acl in acls:
        is_known = acl in state.acls or acl in added
        why = check_acl(acl) or _check_topic(acl) or (None if is_known else _check_count(len(state.acls) + len(added)))
        if why is None and not is_known:
            added[acl] = None
        answers.append(why)
    return Step(answers, tuple(records.AclAdded(records.encode_acl(acl)) for acl in added))


def decide_delete_acls(
    state: ClusterState, filters: Sequence[AclBindingFilter]
) -> Step[ClusterRecord, list[list[AclBinding]] | Refused]:
    """Remove the bindings that the filters match, and answer with those of each filter. Refused as a whole:
    UNSUPPORTED_VERSION, INVALID_REQUEST (filters that would take too long to look through so many ACLs, or that find
    too many of them for one answer).
    """
    refused = _check_level(state) or _check_filters(filters, len(state.acls))
    if refused is not None:
        return Step(refused)
    found = [_find(state.acls, wanted) for wanted in filters]
    count = sum(map(len, found))
    if count > _REMOVED_MAX:
        return Step(
            Refused(
                ErrorCode.INVALID_REQUEST,
                f"expected filters that find at most {_REMOVED_MAX:,} ACLs together, found {count:,}: nothing was "
                "removed; name a resource, a principal or an operation, and send several calls",
            )
        )
    removed = dict.fromkeys(acl for of_filter in found for acl in of_filter)
    return Step(found, tuple(records.AclRemoved(records.encode_acl(acl)) for acl in removed))


def _find(acls: AclIndex, wanted: AclBindingFilter) -> list[AclBinding]:
    exact = wanted.exact
    if exact is not None:
        return [exact] if exact in acls else []
    return [acl for acl in acls if wanted.matches(acl)]


def _check_filters(filters: Sequence[AclBindingFilter], known: int) -> Refused | None:
    count, count_max = sum(wanted.exact is None for wanted in filters), _COMPARISONS_MAX // max(1, known)
    if count <= count_max:
        return None
    return Refused(
        ErrorCode.INVALID_REQUEST,
        f"expected at most {count_max} filters in a call while there are {known:,} ACLs, beside those that name a "
        f"single ACL, found {count}",
    )


def _check_topic(acl: AclBinding) -> Refused | None:
    """A pattern that no topic's name can match, as one with a blank behind it, would have no effect."""
    name, is_prefix = acl.resource_name, acl.pattern_type is PatternType.PREFIXED
    if acl.resource_type is not AclResourceType.TOPIC or (name == ANY_NAME and not is_prefix):
        return None
    if is_prefix and name == ANY_NAME:
        return Refused(
            ErrorCode.INVALID_REQUEST,
            "expected what names of topics begin with, found '*', which stands for all topics as a literal name only",
        )
    begins_names = is_prefix and name in (".", "..")
    refused = None if begins_names else check_topic_name(name)
    return None if refused is None else Refused(ErrorCode.INVALID_REQUEST, refused.message)


def _check_level(state: ClusterState) -> Refused | None:
    if state.level >= LEVEL_OF_SECURITY:
        return None
    return Refused(
        ErrorCode.UNSUPPORTED_VERSION,
        f"ACLs need {BUS_VERSION} {LEVEL_OF_SECURITY}, found {state.level}: run bus cluster features upgrade once all "
        "brokers are of this version",
    )


def _check_count(known: int) -> Refused | None:
    if known < ACLS_MAX:
        return None
    return Refused(ErrorCode.POLICY_VIOLATION, f"expected at most {ACLS_MAX:,} ACLs, found as many")


VIEWS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class CreateView:
    name: str
    topic: str
    schema: str  # DDL
    columns: Sequence[str] | None = None  # None: the usual ones
    replaces: bool = False  # a view of that name
    validate_only: bool = False


ViewStep = Step[ClusterRecord, JsonView | Refused]


def decide_create_view(state: ClusterState, command: CreateView) -> ViewStep:
    """Create a view that both engines can make, and whose name means nothing else in SQL, unless a topic of that name
    came later, which comes first. Refused: INVALID_REQUEST (the name, the schema or the columns cannot be, or the name
    is taken), INVALID_TOPIC_EXCEPTION (internal: its values are columns already), UNKNOWN_TOPIC_OR_PARTITION,
    POLICY_VIOLATION (too many views)."""
    try:
        view = check_view(command.name, command.topic, command.schema, command.columns)
    except SchemaError as error:
        return _invalid(f"view {command.name!r}: {error}")
    refused = check_not_internal(command.topic) or _check_names(state, command)
    if refused is not None:
        return Step(refused)
    if command.topic not in state.topics:
        return Step(
            Refused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"view {command.name}: expected an existing topic, found none named {command.topic!r}",
            )
        )
    record = ViewCreated(view.name, view.topic, view.schema, ",".join(view.columns))
    return Step(view, () if command.validate_only else (record,))


def decide_delete_view(state: ClusterState, name: str) -> ViewStep:
    """Refused: INVALID_REQUEST (there is none)."""
    view = state.views.get(name.casefold())
    if view is None:
        # Without the names of the views that exist: the caller may lack the permission to see them.
        return _invalid(f"expected a view, found none named {name!r}")
    return Step(view, (ViewDeleted(view.name),))


def _check_names(state: ClusterState, command: CreateView) -> Refused | None:
    folded = command.name.casefold()
    before = state.views.get(folded)
    if before is not None and not command.replaces:
        return _invalid(f"view {before.name} exists already; it can be replaced").response
    if before is None and len(state.views) >= VIEWS_MAX:
        return Refused(ErrorCode.POLICY_VIOLATION, f"expected at most {VIEWS_MAX} views, found as many")
    topic = next((topic for topic in state.topics if topic.casefold() == folded), None)
    if topic is not None:
        return _invalid(f"expected a name that no topic has, found {command.name!r} and a topic {topic}").response
    return None


def _invalid(message: str) -> Step[ClusterRecord, Refused]:
    return Step(Refused(ErrorCode.INVALID_REQUEST, message))
