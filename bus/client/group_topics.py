"""The topics of a group as its leader needs them: how many partitions each has, now and later, and who gets which.

Guards two promises: an assignment goes out only if it keeps to the group's members and, under cooperative rebalancing,
takes nothing from a member that still owns it; and new topics and partitions are noticed within metadata.max.age.ms.
Asks for metadata in the thread that polls, with no lock held.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from threading import Lock

from bus.client.assignors import Assignment, RebalanceProtocol
from bus.client.cluster import Cluster
from bus.client.membership import Lead, Membership
from bus.client.subscriptions import Subscription
from bus.errors import BusError, ErrorCode


class GroupTopics:
    """`lock` is the membership's."""

    def __init__(self, cluster: Cluster, membership: Membership, lock: Lock, metadata_max_age_ms: int) -> None:
        self._cluster = cluster
        self._membership = membership
        self._lock = lock
        self._max_age_s = metadata_max_age_ms / 1000
        self._look_at = -math.inf
        self._failures = 0

    def look_anew(self) -> None:
        """The subscription is another one."""
        self._look_at = -math.inf

    def next_look(self, subscription: Subscription) -> float:
        """When `watch` has something to do again."""
        is_watched = subscription.pattern is not None or self._membership.led_topics()
        return self._look_at if is_watched else math.inf

    def watch(self, subscription: Subscription, now: float) -> None:
        """Look for new topics of a pattern, and for new partitions of what this leader assigned, if it is time."""
        if now < self.next_look(subscription):
            return
        is_pattern = subscription.pattern is not None
        try:
            counts = self._count_partitions(None if is_pattern else self._membership.led_topics())
        except BusError as error:
            if not self._cluster.may_retry(error):
                raise
            self._look_at = now + self._cluster.backoff.seconds(self._failures)
            self._failures += 1
            return
        self._look_at, self._failures = now + self._max_age_s, 0
        with self._lock:
            if is_pattern:
                self._membership.subscribe(subscription.matching(counts))
            self._membership.note_partitions(counts)

    def lead(self, work: Lead) -> None:
        """Make the assignment. Raises what the assignor raises; the group waits until this member has joined again."""
        try:
            counts = self._count_partitions(work.topics)
            assignment = {} if work.is_kept else work.assignor.assign(counts, work.members)
            if not work.is_kept:
                self._check(work, assignment)
        except BaseException as error:
            with self._lock:
                self._membership.fail_lead(work, time.monotonic())
            if isinstance(error, BusError) and self._cluster.may_retry(error):
                return
            raise
        now = time.monotonic()
        self._look_at = now + self._max_age_s
        with self._lock:
            self._membership.lead(work, counts, assignment, now)

    def _check(self, work: Lead, assignment: Assignment) -> None:
        """Kafka's check on assignors of users. The built-in one knows which of two claims is the older."""
        strangers = sorted(assignment.keys() - work.members.keys())
        if strangers:
            raise _bad_assignor(work, f"members of the group to assign to, found {strangers}")
        if self._membership.protocol is not RebalanceProtocol.COOPERATIVE or work.assignor.name == "cooperative-sticky":
            return
        owners = {partition: owner for owner, member in work.members.items() for partition in member.owned}
        for member_id, partitions in assignment.items():
            for partition in partitions:
                if owners.get(partition, member_id) != member_id:
                    raise _bad_assignor(work, f"{partition} to be left out while {owners[partition]} owns it")

    def _count_partitions(self, topics: Iterable[str] | None) -> dict[str, int]:
        """None: of all topics but the bus's own. A topic that does not exist has none."""
        wanted = None if topics is None else frozenset(topics)
        if wanted is not None and not wanted:
            return {}
        found = self._cluster.describe(sorted(wanted or ())).topics
        return {
            topic.name: len(topic.partitions)
            for topic in found
            if not topic.error_code and not (wanted is None and topic.is_internal)
        }


def _bad_assignor(work: Lead, expected: str) -> BusError:
    return BusError(ErrorCode.INVALID_REQUEST, f"assignor {work.assignor.name!r}: expected {expected}")
