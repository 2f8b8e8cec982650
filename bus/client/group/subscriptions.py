"""What a consumer reads: nothing, topics by name, topics by pattern, or partitions that it named itself.

Guards one promise: the group decides what is read, or the user does, never both at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from bus.client.arguments import check_text, check_topic
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition

RebalanceCallback = Callable[[list[TopicPartition]], object]


@dataclass(frozen=True, slots=True)
class Subscription:
    """By name, or by pattern; then `topics` is empty. The callbacks come with their partitions, sorted."""

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
