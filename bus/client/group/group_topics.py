"""The topics of a group as its leader needs them: how many partitions each has, now and later, and who gets which.

Guards two promises: an assignment goes out only if it keeps to the group's members and, under cooperative rebalancing,
takes nothing from a member that still owns it; and new topics and partitions are noticed within metadata.max.age.ms.
Asks for metadata beside the thread that polls (`retrying.py`), and runs the assignor in it.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from bus.client.arguments import check_text, check_topic
from bus.client.assignors import Assignment, RebalanceProtocol
from bus.client.connection.cluster import Cluster
from bus.client.connection.metadata_cache import error_of
from bus.client.connection.retrying import Lookup, monotonic_ms
from bus.client.group.membership import Lead, Membership
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.platform.reentry import logger_of

RebalanceCallback = Callable[[list[TopicPartition]], object]


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics that a consumer subscribes to: by name, or by pattern; then `topics` is empty. A consumer either has a
    subscription or assigned its partitions itself, never both. The callbacks get their partitions sorted."""

    topics: frozenset[str]
    pattern: re.Pattern[str] | None = None
    on_assigned: RebalanceCallback | None = None
    on_revoked: RebalanceCallback | None = None
    on_lost: RebalanceCallback | None = None  # None: as on_revoked

    def matching(self, topics: Iterable[str]) -> frozenset[str]:
        """Those of `topics` that a pattern subscribes to: it has to match the whole name."""
        assert self.pattern is not None, "topics that are named need no match"
        return frozenset(topic for topic in topics if self.pattern.fullmatch(topic))

    def with_callbacks_before(
        self, on_assigned: RebalanceCallback, on_revoked: RebalanceCallback, on_lost: RebalanceCallback
    ) -> Subscription:
        """The same, where each of these is called before the one that is there."""
        return replace(
            self,
            on_assigned=_one_after_another(on_assigned, self.on_assigned),
            on_revoked=_one_after_another(on_revoked, self.on_revoked),
            on_lost=_one_after_another(on_lost, self.on_lost or self.on_revoked),
        )


def _one_after_another(first: RebalanceCallback, second: RebalanceCallback | None) -> RebalanceCallback:
    def call_both(partitions: list[TopicPartition]) -> None:
        try:
            first(partitions)
        finally:
            if second is not None:
                second(partitions)

    return call_both


def subscription_of(
    topics: Iterable[str] | None,
    pattern: str | re.Pattern[str] | None,
    *,
    on_assigned: RebalanceCallback | None,
    on_revoked: RebalanceCallback | None,
    on_lost: RebalanceCallback | None,
) -> Subscription | None:
    """None for an empty list of topics: nothing is subscribed. Raises `BusError`."""
    for callback in (on_assigned, on_revoked, on_lost):
        if callback is not None and not callable(callback):
            raise _wrong(f"a rebalance callback to be a function of the partitions, found {callback!r}")
    if (topics is None) == (pattern is None):
        raise _wrong("either topics or a pattern to subscribe to, found " + ("neither" if topics is None else "both"))
    if pattern is not None:
        return Subscription(frozenset(), compiled(pattern), on_assigned, on_revoked, on_lost)
    assert topics is not None, "one of the two is there"
    if isinstance(topics, (str, bytes)) or not isinstance(topics, Iterable):
        kind = "the text " if isinstance(topics, str) else ""
        hint = f": give [{topics!r}]" if isinstance(topics, str) else ""
        raise _wrong(f"a list of topics, found {kind}{topics!r}{hint}")
    names = frozenset(topics)
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise _wrong(f"names of topics, found {name!r}")
        check_topic(name)
    return Subscription(names, None, on_assigned, on_revoked, on_lost) if names else None


def compiled(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """Raises `BusError` INVALID_REGULAR_EXPRESSION."""
    try:
        found = re.compile(pattern)
        if not isinstance(found.pattern, str):
            raise TypeError("a pattern of bytes matches no name")
    except (re.error, TypeError) as error:
        raise BusError(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"expected a regular expression, found {pattern!r}: {error}"
        ) from None
    check_text("pattern", found.pattern)
    return found


def _wrong(message: str) -> BusError:
    return BusError(ErrorCode.INVALID_REQUEST, f"expected {message}")


logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class _Counts:
    """`names` None: for all topics but the bus's own. A topic that does not exist has no partitions."""

    names: frozenset[str] | None
    partitions: dict[str, int]
    invalid: BusError | None  # a name that no topic may have


class GroupTopics:
    """`changed` is the condition on the membership's lock."""

    def __init__(
        self,
        cluster: Cluster,
        membership: Membership,
        changed: threading.Condition,
        *,
        metadata_max_age_ms: int,
        may_create: bool,
    ) -> None:
        """`may_create`: brokers may create topics that the subscription names."""
        self._cluster = cluster
        self._membership = membership
        self._changed = changed
        self._max_age_ms = metadata_max_age_ms
        self._may_create = may_create
        self._look: Lookup[_Counts] = Lookup("bus-topics", changed)
        self._look_at_ms = -math.inf
        self._failures = 0
        self._led: Lookup[_Counts] = Lookup("bus-led-topics", changed)
        self._leading: Lead | None = None  # the request that `_led` answers
        self._missing: frozenset[str] = frozenset()  # told in the log that they do not exist

    def look_anew(self) -> None:
        """The subscription is another one."""
        self._look_at_ms = -math.inf

    def next_look(self) -> float:
        """When `watch` has something to do again without any answer."""
        return math.inf if self._look.is_under_way else self._look_at_ms

    @property
    def is_leading(self) -> bool:
        """The numbers of partitions are asked for; `lead` goes on when they are there."""
        return self._led.is_under_way

    def is_pressed(self) -> bool:
        """An answer came that was not taken up. The lock is held."""
        return self._look.has_answer or self._led.has_answer

    def watch(self, subscription: Subscription, now_ms: float) -> None:
        """Look for new topics of a pattern, for new partitions of what this leader assigned, and for topics that do
        not exist yet, if it is time. Raises `BusError` for what does not mend itself."""
        if self._look.is_under_way:
            return
        if self._look.has_answer:
            self._take_up(subscription, now_ms)
        if now_ms >= self._look_at_ms:
            is_pattern = subscription.pattern is not None
            wanted = None if is_pattern else subscription.topics | self._membership.led_topics()
            self._look_at_ms = math.inf
            self._look.start(partial(self._count_partitions, wanted))

    def _take_up(self, subscription: Subscription, now_ms: float) -> None:
        try:
            counts = self._look.take()
        except BusError as error:
            self._look_at_ms = min(self._look_at_ms, now_ms + self._cluster.backoff.ms(self._failures))
            self._failures += 1
            if not self._cluster.may_retry(error):
                raise
            return
        self._tell_membership(subscription, counts)
        self._warn_of_missing(subscription, counts)
        is_incomplete = counts.names is not None and any(not counts.partitions.get(topic) for topic in counts.names)
        self._failures = self._failures + 1 if is_incomplete else 0
        self._look_at_ms = min(self._look_at_ms, now_ms + self._pause_ms(is_incomplete=is_incomplete))
        if counts.invalid is not None:
            raise counts.invalid

    def _tell_membership(self, subscription: Subscription, counts: _Counts) -> None:
        """Tell the membership. The answer to a former subscription says nothing of topics that it did not name."""
        with self._changed:
            if subscription.pattern is not None and counts.names is None:
                self._membership.subscribe(subscription.matching(counts.partitions))
            if counts.names is None or counts.names >= self._membership.led_topics():
                self._membership.note_partitions(counts.partitions)

    def _warn_of_missing(self, subscription: Subscription, counts: _Counts) -> None:
        missing = frozenset(topic for topic in counts.names or () if not counts.partitions.get(topic))
        for topic in sorted((missing & subscription.topics) - self._missing):
            logger.warning("topic %r is waited for: UNKNOWN_TOPIC_OR_PARTITION: it does not exist yet", topic)
        self._missing = missing

    def _pause_ms(self, *, is_incomplete: bool) -> float:
        """A topic that does not exist yet is looked for as soon as Kafka's consumer does."""
        return min(self._max_age_ms, self._cluster.backoff.ms(self._failures)) if is_incomplete else self._max_age_ms

    def lead(self, work: Lead) -> None:
        """Make the assignment, once the numbers of partitions are known: then `work` is done with. Raises what the
        assignor raises; the group waits until this member has joined again."""
        if self._led.is_under_way:
            return
        if self._leading is not work or not self._led.has_answer:
            self._leading = work
            self._led.start(partial(self._count_partitions, work.topics))
            return
        self._leading = None
        try:
            counts = self._led.take().partitions
            assignment = {} if work.is_kept else work.assignor.assign(counts, work.members)
            if not work.is_kept:
                self._check(work, assignment)
        except BaseException as error:
            with self._changed:
                self._membership.fail_lead(work, monotonic_ms())
            if isinstance(error, BusError) and self._cluster.may_retry(error):
                return
            raise
        now_ms = monotonic_ms()
        with self._changed:
            self._membership.lead(work, counts, assignment, now_ms)
        self._look_at_ms = now_ms + self._pause_ms(is_incomplete=any(not counts.get(topic) for topic in work.topics))

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

    def _count_partitions(self, names: frozenset[str] | None) -> _Counts:
        """None: of all topics but the bus's own. Not in the thread that polls."""
        if names is not None and not names:
            return _Counts(names, {}, None)
        topics = self._cluster.describe(sorted(names or ()), may_create=self._may_create and names is not None).topics
        invalid = [topic for topic in topics if topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION]
        return _Counts(
            names,
            {
                topic.name: len(topic.partitions)
                for topic in topics
                if not topic.error_code and not (names is None and topic.is_internal)
            },
            error_of(invalid[0].error_code, invalid[0].error_message) if invalid else None,
        )


def _bad_assignor(work: Lead, expected: str) -> BusError:
    return BusError(ErrorCode.INVALID_REQUEST, f"assignor {work.assignor.name!r}: expected {expected}")
