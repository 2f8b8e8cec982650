"""The cluster as a whole: its brokers and its users for administrators, and the answers to other brokers."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bus.broker_api.authorization import OF_CLUSTER, Access
from bus.broker_api.requests import info_at
from bus.cluster_metadata.broker_decisions import BrokerIdentity, RegisterBroker
from bus.cluster_metadata.cluster_decisions import RaiseLeaderEpoch
from bus.cluster_metadata.cluster_state import BUS_VERSION, LEVEL_MAX, LEVEL_MIN, Broker, replica_state
from bus.descriptions import BrokerDescription, ClusterDescription, ScramCredentialInfo
from bus.errors import ErrorCode, NotController, Refused, StorageFault, first_line, show_names
from bus.model import BrokerEndpoint, TopicPartition
from bus.runtime.audit_log import AuditLog
from bus.runtime.cluster import Cluster
from bus.runtime.metadata.peers import BrokerHeartbeat, HeartbeatAnswer, Registered
from bus.runtime.partitions.fetches import Stopping
from bus.runtime.replicas.followed_tables import VersionsAnswer, VersionsRequest
from bus.runtime.tasks import LoopShares
from bus.runtime.user_directory import UserDirectory
from bus.security.users import Alteration, Credentials, DeleteScram

_log = logging.getLogger(__name__)

# By one call that names no partition: each is a record, and the caller requests the others by another call.
_ELECTIONS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class FeatureLevels:
    """level_min <= level <= level_max: what this broker can work at, and what the cluster works at."""

    name: str
    level: int
    level_min: int
    level_max: int


Reassignments = Sequence[tuple[TopicPartition, Sequence[int] | None]]  # None: cancel


class ClusterAdminApi:
    """The brokers for administrators: which there are, which partitions they lead and follow, and changes of that."""

    def __init__(self, cluster: Cluster, shares: LoopShares) -> None:
        self._cluster = cluster
        self._shares = shares

    def features(self) -> Sequence[FeatureLevels]:
        """Return what the brokers of the cluster have agreed on, as far as this one has followed it."""
        return (FeatureLevels(BUS_VERSION, self._cluster.state.level, LEVEL_MIN, LEVEL_MAX),)

    async def describe(
        self, access: Access, listener: str, *, is_fenced_included: bool
    ) -> ClusterDescription | Refused:
        """Describe it with the addresses for clients of the listener; a broker that has none has an empty host. At
        level 0, where a root has one broker, this one is the controller."""
        refused = await access.refusal_of_request(OF_CLUSTER)
        if refused is not None:
            return refused
        state = self._cluster.state
        replica_counts: Counter[int] = Counter()
        under_replicated_count = offline_count = 0
        unfenced = frozenset(state.unfenced_brokers)
        share = self._shares.begin()
        for topic in state.topics.values():
            for number in range(len(topic.partitions)):
                if share.is_used_up:
                    await share.wait()
                lagging = self._cluster.lagging.of(TopicPartition(topic.name, number))
                found = replica_state(topic, number, unfenced, lagging)
                replica_counts.update(found.replicas)
                under_replicated_count += found.is_under_replicated
                offline_count += found.is_offline
        shown = (one for one in state.brokers.values() if is_fenced_included or not one.is_fenced)
        controller = state.controller
        return ClusterDescription(
            cluster_id=self._cluster.storage.cluster_id,
            controller_id=self._cluster.endpoint.broker_id if controller is None else controller.broker_id,
            brokers=tuple(
                _describe(one, listener, state.leader_counts.get(one.broker_id, 0), replica_counts[one.broker_id])
                for one in sorted(shown, key=lambda one: one.broker_id)
            ),
            root_url=self._cluster.storage.root_url,
            controller_epoch=self._cluster.metadata.state.leader_epoch,
            feature_level=state.level,
            under_replicated_partitions=under_replicated_count,
            offline_partitions=offline_count,
        )

    async def elect_leaders(
        self, access: Access, partitions: Sequence[TopicPartition] | None
    ) -> Mapping[TopicPartition, int | Refused] | Refused:
        """Have the preferred leaders elected: of these partitions, each of which counts once, or with None of all that
        another broker leads, a thousand at most. Return the leaders of those that were named, or else of those that
        have changed."""
        access.changes.begin(lambda: dict.fromkeys(one.topic for one in partitions or ()) or [""])
        refused = await access.refusal_of_request(OF_CLUSTER)
        answers = refused or await self._elect_leaders(partitions)
        if isinstance(answers, Refused):
            access.changes.report_all(answers)
        else:
            access.changes.report(lambda: ((str(partition), answer) for partition, answer in answers.items()))
        return answers

    async def _elect_leaders(
        self, partitions: Sequence[TopicPartition] | None
    ) -> Mapping[TopicPartition, int | Refused]:
        named = None if partitions is None else tuple(dict.fromkeys(partitions))
        if named == ():
            return {}
        answers = await self._cluster.controller.elect_leaders(
            named, changes_max=_ELECTIONS_MAX if named is None else None
        )
        return dict.fromkeys(named or (), answers) if isinstance(answers, Refused) else answers

    async def reassign_partitions(self, access: Access, reassignments: Reassignments) -> list[Refused | None] | Refused:
        """An answer for each, in order. A partition that is named again is refused."""
        access.changes.begin(lambda: (str(partition) for partition, _ in reassignments))
        refused = await access.refusal_of_request(OF_CLUSTER)
        if refused is not None:
            access.changes.report_all(refused)
            return refused
        answers = await self._reassign_partitions(reassignments)
        access.changes.report_in_order(answers)
        return answers

    async def refusal_of_list(self, access: Access) -> Refused | None:
        """Return why the caller may not see which reassignments are under way. There never is one: a reassignment
        counts as soon as it is committed."""
        return await access.refusal_of_request(OF_CLUSTER)

    async def _reassign_partitions(self, reassignments: Reassignments) -> list[Refused | None]:
        wanted: dict[TopicPartition, Sequence[int] | None] = {}
        again: dict[int, Refused] = {}
        for place, (partition, replicas) in enumerate(reassignments):
            if partition in wanted:
                message = f"expected each partition once, found {show_names([str(partition)])} again"
                again[place] = Refused(ErrorCode.INVALID_REQUEST, message)
            else:
                wanted[partition] = replicas
        answers = await self._cluster.controller.reassign_partitions(wanted) if wanted else {}
        found: list[Refused | None] = []
        for place, (partition, _) in enumerate(reassignments):
            answer = again.get(place) or (answers if isinstance(answers, Refused) else answers[partition])
            found.append(answer if isinstance(answer, Refused) else None)
        return found

    async def unregister_broker(self, access: Access, broker_id: int) -> Refused | None:
        unregister = functools.partial(self._cluster.controller.unregister_broker, broker_id)
        return await access.change(f"broker {broker_id}", unregister, OF_CLUSTER)

    async def update_feature(self, access: Access, feature: str, level: int, *, validate_only: bool) -> Refused | None:
        update = functools.partial(self._update_feature, feature, level, validate_only=validate_only)
        return await access.change(f"{feature} {level}", update, OF_CLUSTER, is_change=not validate_only)

    async def _update_feature(self, feature: str, level: int, *, validate_only: bool) -> Refused | None:
        if feature != BUS_VERSION:
            message = f"expected the feature {BUS_VERSION}, found {show_names([feature])!r}"
            return Refused(ErrorCode.INVALID_UPDATE_VERSION, message)
        answer = await self._cluster.controller.upgrade_features(level, validate_only=validate_only)
        return answer if isinstance(answer, Refused) else None


def _describe(broker: Broker, listener: str, leader_count: int, replica_count: int) -> BrokerDescription:
    address = info_at(listener, broker.endpoint)
    return BrokerDescription(
        broker_id=broker.broker_id,
        host=address.host,
        port=address.port,
        rack=broker.rack or None,
        is_fenced=broker.is_fenced,
        broker_epoch=broker.broker_epoch,
        incarnation_id=broker.incarnation,
        leader_count=leader_count,
        replica_count=replica_count,
        feature_levels=(broker.level_min, broker.level_max),
    )


DescribedUser = Sequence[ScramCredentialInfo]  # sorted by mechanism


class UserApi:
    """Users for administrators: which there are, and changes of their passwords (KIP-554)."""

    def __init__(self, users: UserDirectory) -> None:
        self._users = users

    async def describe(
        self, access: Access, names: Sequence[str]
    ) -> Iterator[tuple[str, DescribedUser | Refused]] | Refused:
        """No names: all, in order. As an iterator, since there may be many."""
        refused = await access.refusal_of_request(OF_CLUSTER)
        if refused is not None:
            return refused
        try:
            known = (await self._users.describe()).by_name
        except StorageFault as fault:
            known, refusal = {}, _storage_error(fault)
            return ((name, refusal) for name in dict.fromkeys(names or [""]))
        if not names:
            return ((name, _described(known[name])) for name in sorted(known))
        return ((name, _find(known, name, count)) for name, count in Counter(names).items())

    async def alter(self, access: Access, alterations: Sequence[Alteration]) -> Mapping[str, Refused | None]:
        """Return for each user None or why nothing was changed of it, in the order in which they are first named."""
        access.changes.begin(lambda: _users_of(alterations))
        refused = await access.refusal_of_request(OF_CLUSTER)
        if refused is not None:
            access.changes.report_all(refused)
            return dict.fromkeys(_users_of(alterations), refused)
        answers = await self._alter(alterations) if alterations else {}
        access.changes.report(answers.items)
        return answers

    async def _alter(self, alterations: Sequence[Alteration]) -> Mapping[str, Refused | None]:
        try:
            answers = await self._users.alter(alterations)
        except StorageFault as fault:
            return dict.fromkeys((one.name for one in alterations), _storage_error(fault))
        done = dict.fromkeys(one for one in alterations if answers[one.name] is None)
        for one in done:
            verb = "deleted" if isinstance(one, DeleteScram) else "set"
            _log.info("the password of user %r for %s is %s", one.name, one.mechanism, verb)
        return answers


def _users_of(alterations: Sequence[Alteration]) -> Mapping[str, None]:
    """Return the names in the order of Kafka's request: those that are to be set, then those that are to be deleted."""
    named = sorted(alterations, key=lambda one: isinstance(one, DeleteScram))
    return dict.fromkeys(one.name for one in named)


def _find(known: Mapping[str, Credentials], name: str, count: int) -> DescribedUser | Refused:
    if count > 1:
        return Refused(ErrorCode.DUPLICATE_RESOURCE, f"expected {show_names([name])!r} once, found it {count} times")
    if name not in known:
        return Refused(ErrorCode.RESOURCE_NOT_FOUND, f"expected a user, found none named {show_names([name])!r}")
    return _described(known[name])


def _described(credentials: Credentials) -> DescribedUser:
    return [ScramCredentialInfo(mechanism, one.iterations) for mechanism, one in sorted(credentials.items())]


def _storage_error(fault: StorageFault) -> Refused:
    return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of users: {first_line(fault)}")


class ClusterApi:
    """Answers to other brokers of the cluster, and to whoever asks for the controller."""

    def __init__(self, cluster: Cluster, stopping: Stopping, audit: AuditLog) -> None:
        self._cluster = cluster
        self._stopping = stopping
        self._audit = audit
        self.endpoint = cluster.endpoint

    async def identify(self, access: Access) -> BrokerIdentity | Refused:
        storage = self._cluster.storage
        refused = await access.refusal_of_request(OF_CLUSTER)
        return refused or BrokerIdentity(storage.cluster_id, self.endpoint.broker_id, storage.incarnation)

    @property
    def controller(self) -> BrokerEndpoint | None:
        """None while none is known."""
        return self._cluster.metadata.controller

    @property
    def metadata_offset(self) -> int:
        """One past the last record of the cluster metadata that this broker has applied."""
        return self._cluster.metadata.applied_offset

    async def wait_until_applied(self, metadata_offset: int) -> None:
        await self._cluster.metadata.wait_until_applied(metadata_offset)

    async def register(self, access: Access, command: RegisterBroker, *, cluster_id: str) -> Registered | Refused:
        refused = await access.refusal_of_request(OF_CLUSTER)
        return refused or await self._cluster.heartbeats.register(command, cluster_id=cluster_id)

    async def raise_leader_epoch(self, access: Access, command: RaiseLeaderEpoch) -> int | Refused:
        """See `decide_raise_leader_epoch`; NOT_CONTROLLER from any other broker."""
        refused = await access.refusal_of_request(OF_CLUSTER)
        if refused is not None:
            return refused
        try:
            return await self._cluster.controller.raise_leader_epoch(command)
        except NotController as error:
            return Refused(ErrorCode.NOT_CONTROLLER, str(error))

    async def append_audit(self, access: Access, rows: bytes) -> Refused | None:
        """Rows of another broker."""
        refused = await access.refusal_of_request(OF_CLUSTER)
        return refused or await self._audit.append_rows(rows)

    async def heartbeat(self, access: Access, heartbeat: BrokerHeartbeat) -> HeartbeatAnswer | Refused:
        refused = await access.refusal_of_request(OF_CLUSTER)
        return refused or await self._cluster.heartbeats.take(heartbeat)

    async def committed_versions(self, access: Access, request: VersionsRequest) -> VersionsAnswer | Refused:
        """Note how far a follower has come, and return what this broker has committed as a leader behind that."""
        refused = await access.refusal_of_request(OF_CLUSTER) or self._cluster.host.in_sync.take(request.report)
        if refused is not None:
            return refused
        committed, wake = self._cluster.host.committed_versions, asyncio.Event()
        with self._stopping.waking(wake):
            if self._stopping.has_begun:
                return committed.answer(request)
            return await committed.wait(request, wake)
