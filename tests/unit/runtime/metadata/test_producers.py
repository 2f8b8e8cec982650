"""Producers that may write, as far as a broker has followed the metadata, and the identity that an instance of a name
gets."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.cluster_metadata.cluster_records import BrokerRegistered, ProducerIdsAllocated, ProducerNamed, apply_all
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER
from bus.cluster_metadata.producer_ids import ProducerIdentity
from bus.errors import ErrorCode, Refused
from bus.model import ProducerStamp
from bus.runtime.metadata.producers import Producers, ProducerUses


@pytest.mark.parametrize(
    ("brokers", "is_leading", "code"),
    [
        ((0,), True, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ((0,), False, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ((0, 1), True, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_an_id_that_another_broker_may_have_given_is_not_refused_for_good(
    brokers: tuple[int, ...], is_leading: bool, code: ErrorCode
) -> None:
    """A broker that stood still does not know the newest ids, nor that it leads no more."""
    cluster = apply_all(EMPTY_CLUSTER, [BrokerRegistered(broker, "h", 1) for broker in brokers])
    producers = producers_of(SimpleNamespace(cluster=cluster, is_leading=is_leading))
    refused = producers.check(ProducerStamp(5, 0, 0))
    assert refused is not None
    assert refused.code is code


FIRST, SECOND = b"1" * 16, b"2" * 16


class FakeMetadata:
    """Metadata with one name at epoch 4. `commits` False: decisions do not reach the log."""

    def __init__(self) -> None:
        self.cluster = apply_all(EMPTY_CLUSTER, [ProducerIdsAllocated(0, 1_000), ProducerNamed("orders", 0, 4, -1)])
        self.leader_epoch = 7
        self.applied_offset = 0
        self.commits = True

    def check_is_controller(self) -> None: ...

    async def change(self, decisions: Any) -> list[Any]:
        (step,) = (decide(self.cluster) for decide in decisions)
        if step.records and not self.commits:
            return [Refused(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")]
        self.cluster = apply_all(self.cluster, step.records)
        return [step.response]


def init(metadata: FakeMetadata, producers: Producers, instance_id: bytes, *, commits: bool = True) -> int | None:
    """The epoch that the instance gets; None if it is refused."""
    metadata.commits = commits
    answer = asyncio.run(producers.init("orders", instance_id=instance_id))
    return answer.producer_epoch if isinstance(answer, ProducerIdentity) else None


async def _followed(_: int) -> None: ...


def producers_of(metadata: object) -> Producers:
    unused = cast(Any, None)
    return Producers(
        cast(Any, metadata),
        ProducerUses(0),
        broker_id=0,
        expiration_ms=1,
        now_ms=unused,
        calls=unused,
        tasks=unused,
        wait_until_followed=_followed,
    )


def test_an_epoch_that_was_not_committed_for_an_instance_is_another_ones() -> None:
    metadata = FakeMetadata()
    producers = producers_of(metadata)
    assert init(metadata, producers, FIRST, commits=False) is None
    assert init(metadata, producers, b"") == 5, "an instance that does not say who it is"
    assert init(metadata, producers, FIRST) == 6


def test_what_an_earlier_controllership_decided_for_an_instance_counts_no_more() -> None:
    """Another controller may have given the same epoch to another instance meanwhile."""
    metadata = FakeMetadata()
    producers = producers_of(metadata)
    assert init(metadata, producers, FIRST, commits=False) is None
    metadata.cluster = apply_all(metadata.cluster, [ProducerNamed("orders", 0, 5, -1)])
    metadata.leader_epoch += 2
    assert init(metadata, producers, FIRST) == 6
    assert init(metadata, producers, FIRST) == 6
