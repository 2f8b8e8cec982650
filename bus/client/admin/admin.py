"""The administrator's client. Each call checks its arguments, asks, and decodes the answer.

Guards one promise: a call that returns has done all that it was asked. Items are tried all, and if any failed, one
`BusError` tells of every failure, with the code of the first. The calls about topics, groups and transactions are those
of the classes that `Admin` stands on; those about the cluster, quotas, users and ACLs are here.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bus.client.admin.broker_calls import BrokerCalls, raise_failures
from bus.client.admin.transactions import TransactionAdmin
from bus.client.arguments import (
    check_flag,
    check_integer,
    check_items,
    check_mapping,
    check_text,
    check_texts,
    check_topic_partition,
    check_topic_partitions,
    wrong_type,
    wrong_value,
)
from bus.client.config.clients import AdminConfig
from bus.client.config.parsing import MISSING, EffectiveSetting, client_addresses, describe, parse_with_origins
from bus.client.connection.cluster import Cluster
from bus.client.connection.retrying import CHANGES_MAX, portions
from bus.client.values import UserScramCredentialDeletion, UserScramCredentialUpsertion
from bus.descriptions import (
    ANY_NAME,
    ClusterDescription,
    NoName,
    PartitionReassignment,
    QuotaEntity,
    QuotaUsage,
    ScramCredentialInfo,
)
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import (
    ACL,
    ACL_FILTER,
    CLUSTER,
    CREDENTIAL,
    QUOTA_USAGE,
    REASSIGNMENT,
    UnknownWord,
    decode_quota_entity,
    encode_quota_entity,
    encode_quota_filter,
)
from bus.model import TopicPartition
from bus.security.acls import AclBinding, AclBindingFilter
from bus.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, SCRAM_MECHANISMS, salt_password

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bus.client.config.typed_settings import AdminSettings

_FILTERS_MAX = 100  # of one request
_SALT_BYTES = 32


class Admin(TransactionAdmin):
    """Every method blocks until the broker's answer and raises `BusError`. Safe to use from several threads.

    With several items, all are tried; if some failed, the error has the code of the first and the messages of all,
    and the others are done.
    """

    def __init__(self, address: str | list[str] = MISSING, **configs: Unpack[AdminSettings]) -> None:
        self._config, self._origins = parse_with_origins(AdminConfig, configs)
        self._cluster = Cluster(client_addresses(address, configs), self._config)
        self._calls = BrokerCalls(self._cluster, self._config)

    def describe_settings(self) -> dict[str, EffectiveSetting]:
        """The settings that this client has, by name, each with where it is from: the program, the command line, the
        environment, the profile, or the default. Secrets are hidden."""
        return describe(self._config, self._origins)

    # ------------------------------------------------------------ the cluster

    def describe_cluster(self, *, include_fenced_brokers: bool = False) -> ClusterDescription:
        """Return the cluster as the broker that answers knows it. A fenced broker has ended, is silent, is not reached
        at its address, or has not caught up."""
        is_whole = check_flag("include_fenced_brokers", include_fenced_brokers)
        request = pb.DescribeClusterRequest(include_fenced_brokers=is_whole)
        return CLUSTER.decode(self._calls.ask("DescribeCluster", request))

    def elect_leaders(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Let the preferred leader, the first replica, lead these partitions, or all; the leaders of those that have
        changed. A partition that it leads already is left as it is; without `partitions` also one whose preferred
        leader is fenced, for which PREFERRED_LEADER_NOT_AVAILABLE is raised otherwise."""
        elected: dict[TopicPartition, int] = {}
        if partitions is None:
            while more := self._elect([]):
                elected.update(more)
        else:
            for some in portions(check_topic_partitions("partitions", partitions), CHANGES_MAX):
                elected.update(self._elect(some))
        return elected

    def _elect(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        topics = [pb.TopicPartitions(topic=one.topic, partitions=[one.partition]) for one in partitions]
        response = self._calls.on_controller("ElectLeaders", pb.ElectLeadersRequest(topics=topics))
        needed = [one for one in response.partitions if one.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        raise_failures([(f"{one.topic}-{one.partition}", one.error_code, one.error_message) for one in needed])
        return {TopicPartition(one.topic, one.partition): one.leader_id for one in needed}

    def alter_partition_reassignments(self, assignments: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Give each partition these replicas, the preferred leader first. They count at once: no data is copied, since
        all brokers read the same tables. A leader that is no replica any more hands over.

        Raises INVALID_REPLICA_ASSIGNMENT for a broker that is not registered or is named twice. None would cancel a
        reassignment that is under way: NO_REASSIGNMENT_IN_PROGRESS.
        """
        checked = check_mapping(
            "assignments", assignments, check_topic_partition, _check_replicas, "from TopicPartition to broker ids"
        )
        wanted = [
            pb.PartitionReassignment(
                topic=partition.topic,
                partition=partition.partition,
                replica_ids=replicas or (),
                cancel=replicas is None,
            )
            for partition, replicas in checked.items()
        ]
        results: list[Any] = []
        for portion in portions(wanted, CHANGES_MAX, lambda one: 1 + len(one.replica_ids)):
            request = pb.AlterPartitionReassignmentsRequest(partitions=portion)
            results += self._calls.on_controller("AlterPartitionReassignments", request).partitions
        raise_failures([(f"{one.topic}-{one.partition}", one.error_code, one.error_message) for one in results])

    def list_partition_reassignments(self) -> dict[TopicPartition, PartitionReassignment]:
        """Those that are under way: none, since a reassignment counts at once."""
        response = self._calls.ask("ListPartitionReassignments", pb.ListPartitionReassignmentsRequest())
        return {TopicPartition(one.topic, one.partition): REASSIGNMENT.decode(one) for one in response.partitions}

    def unregister_broker(self, broker_id: int) -> None:
        """Take a broker out of the cluster for good. It has ended; one that runs would register again. Raises
        INVALID_REQUEST while it leads a partition or is a replica, for the controller and for the last broker,
        BROKER_ID_NOT_REGISTERED."""
        request = pb.UnregisterBrokerRequest(broker_id=check_integer("broker_id", broker_id))
        self._calls.on_controller("UnregisterBroker", request)

    def update_features(self, levels: Mapping[str, int], *, validate_only: bool = False) -> None:
        """Finalize the levels of features, of which there is one: `bus.version`. There is no way back. Raises
        INVALID_UPDATE_VERSION for a level below the finalized one, or at which a broker cannot work."""
        checked = check_mapping("levels", levels, check_text, check_integer, "from feature to level")
        is_trial = check_flag("validate_only", validate_only)
        for feature, level in checked.items():
            request = pb.UpdateFeaturesRequest(feature=feature, level=level, validate_only=is_trial)
            self._calls.on_controller("UpdateFeatures", request)

    # ------------------------------------------------------------ quotas

    def describe_client_quotas(
        self, filter: QuotaEntity | None = None, *, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        """The quotas of all entities, or of those that have the parts of `filter`; `DEFAULT_NAME` and `ANY_NAME` stand
        for names. `strict`: and no other part. By name, per second."""
        wanted = QuotaEntity() if filter is None else _check_quota_entity("filter", filter)
        is_strict = check_flag("strict", strict)
        request = pb.DescribeClientQuotasRequest(parts=encode_quota_filter(wanted), strict=is_strict)
        entries = self._calls.ask("DescribeClientQuotas", request).entries
        return {decode_quota_entity(one.entity): dict(one.quotas) for one in entries}

    def alter_client_quotas(
        self, alterations: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool = False
    ) -> None:
        """Set quotas of entities by name, None takes one away; what is not named stays. For each entity all of it is
        done, or nothing. Names: `producer_byte_rate`, `consumer_byte_rate`, `controller_mutation_rate`, `request_rate`.
        Raises INVALID_REQUEST for a name or a value that cannot be."""
        checked = check_mapping(
            "alterations",
            alterations,
            _check_altered_entity,
            _check_quota_changes,
            "from QuotaEntity to quotas by name",
        )
        is_trial = check_flag("validate_only", validate_only)
        wanted = [
            pb.QuotaAlteration(
                entity=encode_quota_entity(entity), changes=[_encode_change(*one) for one in changes.items()]
            )
            for entity, changes in checked.items()
        ]
        results: list[Any] = []
        for portion in portions(wanted, CHANGES_MAX, lambda one: 2 + len(one.changes)):
            request = pb.AlterClientQuotasRequest(entries=portion, validate_only=is_trial)
            results += self._calls.on_controller("AlterClientQuotas", request).entries
        raise_failures([(str(decode_quota_entity(one.entity)), one.error_code, one.error_message) for one in results])

    def describe_quota_usage(self) -> list[QuotaUsage]:
        """Return the use of quotas at each broker, by those who have used any of late."""
        return self._calls.ask_each("DescribeQuotaUsage", pb.DescribeQuotaUsageRequest(), _decode_usage)

    # ------------------------------------------------------------ users

    def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None
    ) -> dict[str, list[ScramCredentialInfo]]:
        """These users, or all, by name: for which mechanisms they have a password. Raises RESOURCE_NOT_FOUND for a name
        that is no user."""
        wanted = [] if users is None else check_texts("users", users)
        if users is not None and not wanted:
            return {}
        found: list[Any] = []
        for portion in portions(wanted, CHANGES_MAX):
            request = pb.DescribeUserScramCredentialsRequest(users=portion)
            found += self._calls.ask("DescribeUserScramCredentials", request).users
        raise_failures([(one.user, one.error_code, one.error_message) for one in found])
        return {one.user: list(map(CREDENTIAL.decode, one.credentials)) for one in found}

    def alter_user_scram_credentials(
        self, alterations: Sequence[UserScramCredentialUpsertion | UserScramCredentialDeletion]
    ) -> None:
        """Create users, give them new passwords, delete them (KIP-554). Who logs in with an earlier password is logged
        out: at once at one broker, a second later at the latest at all."""
        checked = check_items("alterations", alterations, _check_alteration, "upsertions and deletions")
        results: list[Any] = []
        for portion in portions(checked, CHANGES_MAX):
            request = pb.AlterUserScramCredentialsRequest()
            for one in portion:
                if isinstance(one, UserScramCredentialDeletion):
                    request.deletions.add(user=one.user, mechanism=one.mechanism)
                else:
                    request.upsertions.append(encode_upsertion(one))
            results += self._calls.on_controller("AlterUserScramCredentials", request).users
        raise_failures([(one.user, one.error_code, one.error_message) for one in results])

    # ------------------------------------------------------------ access control lists

    def create_acls(self, acls: Iterable[AclBinding]) -> None:
        """Add these bindings; one that is there already is no error. Every broker that serves acts by them then. Raises
        SECURITY_DISABLED if the broker has no authorizer, CLUSTER_AUTHORIZATION_FAILED."""
        results: list[tuple[str, int, str]] = []
        for portion in portions(check_items("acls", acls, _check_acl, "AclBinding"), CHANGES_MAX):
            request = pb.CreateAclsRequest(acls=map(ACL.encode, portion))
            answers = self._calls.on_controller("CreateAcls", request).results
            results += [
                (str(acl), one.error_code, one.error_message) for acl, one in zip(portion, answers, strict=True)
            ]
        raise_failures(results)

    def describe_acls(self, acl_filter: AclBindingFilter | None = None) -> list[AclBinding]:
        """The bindings that the filter finds, or all, in the order in which they were added. Raises UNSUPPORTED_VERSION
        if one of them has a word, an operation for example, that this client does not know."""
        wanted = AclBindingFilter() if acl_filter is None else _check_acl_filter("acl_filter", acl_filter)
        request = pb.DescribeAclsRequest(filter=ACL_FILTER.encode(wanted))
        return _decode_acls(self._calls.ask("DescribeAcls", request).acls)

    def delete_acls(self, filters: Iterable[AclBindingFilter]) -> dict[AclBindingFilter, list[AclBinding]]:
        """Remove the bindings that any of the filters finds; which those were, by filter. No broker that serves acts by
        them then. Raises INVALID_REQUEST if the filters of one call, a hundred, find more than 10,000, and
        UNSUPPORTED_VERSION, behind the removal, as `describe_acls`."""
        removed: dict[AclBindingFilter, Any] = {}
        for portion in portions(check_items("filters", filters, _check_acl_filter, "AclBindingFilter"), _FILTERS_MAX):
            request = pb.DeleteAclsRequest(filters=map(ACL_FILTER.encode, portion))
            answers = self._calls.on_controller("DeleteAcls", request).results
            removed.update({one: gone.acls for one, gone in zip(portion, answers, strict=True)})
        return {one: _decode_acls(acls, "what the filters find was removed, and ") for one, acls in removed.items()}

    # ------------------------------------------------------------ its end

    def close(self) -> None:
        """Safe to repeat."""
        self._cluster.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _decode_acls(acls: Iterable[pb.AclBinding], done: str = "") -> list[AclBinding]:
    try:
        return list(map(ACL.decode, acls))
    except UnknownWord as unknown:
        message = f"{done}an ACL is of a later version than this client: {unknown.message}"
        raise BusError(unknown.code, message) from None


def _check_replicas(name: str, value: Any) -> Sequence[int] | None:
    return None if value is None else check_items(name, value, check_integer, "integers")


def _check_quota_entity(name: str, value: Any) -> QuotaEntity:
    if not isinstance(value, QuotaEntity):
        raise wrong_type(f"{name} as a QuotaEntity", value)
    for part in (value.user, value.client_id):
        if part is not None and not isinstance(part, NoName):
            check_text(f"a name in {name}", part)
    return value


def _check_altered_entity(name: str, value: Any) -> QuotaEntity:
    entity = _check_quota_entity(name, value)
    if ANY_NAME in (entity.user, entity.client_id):
        raise wrong_value(f"{name} with names or DEFAULT_NAME", ANY_NAME)
    return entity


def _check_quota_changes(name: str, value: Any) -> dict[str, float | None]:
    return check_mapping(name, value, check_text, _check_limit, "from quota to number, or None")


def _check_limit(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(f"{name} as a number, or None", value)
    return float(value)


def _check_alteration(name: str, value: Any) -> UserScramCredentialUpsertion | UserScramCredentialDeletion:
    if not isinstance(value, (UserScramCredentialUpsertion, UserScramCredentialDeletion)):
        raise wrong_type(f"{name} as a UserScramCredentialUpsertion or UserScramCredentialDeletion", value)
    return value


def _check_acl(name: str, value: Any) -> AclBinding:
    if not isinstance(value, AclBinding):
        raise wrong_type(f"{name} as an AclBinding", value)
    return value


def _check_acl_filter(name: str, value: Any) -> AclBindingFilter:
    if not isinstance(value, AclBindingFilter):
        raise wrong_type(f"{name} as an AclBindingFilter", value)
    return value


def _encode_change(name: str, limit: float | None) -> pb.QuotaChange:
    return pb.QuotaChange(name=name, remove=True) if limit is None else pb.QuotaChange(name=name, value=limit)


def _decode_usage(broker: pb.Broker, response: pb.DescribeQuotaUsageResponse) -> list[QuotaUsage]:
    return [QUOTA_USAGE.decode(one, broker_id=broker.broker_id) for one in response.entries]


def encode_upsertion(one: UserScramCredentialUpsertion) -> pb.ScramUpsertion:
    """Salt the password. Raises `BusError` where that cannot be done as is wanted."""
    mechanism, iterations = SCRAM_MECHANISMS.get(one.credential.mechanism), one.credential.iterations
    if mechanism is None:
        known = ", ".join(SCRAM_MECHANISMS)
        message = f"expected a mechanism of {known}, found {one.credential.mechanism!r}"
        raise BusError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, message)
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        message = f"expected {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations, found {iterations}"
        raise BusError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
    if not one.password:
        raise BusError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "expected a password, found an empty one")
    salt = secrets.token_bytes(_SALT_BYTES) if one.salt is None else one.salt
    return pb.ScramUpsertion(
        user=one.user,
        mechanism=mechanism.name,
        iterations=iterations,
        salt=salt,
        salted_password=salt_password(mechanism, one.password, salt, iterations),
    )
