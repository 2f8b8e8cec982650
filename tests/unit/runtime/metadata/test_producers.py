"""Who may write, as far as a broker has followed the metadata."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.cluster_metadata.cluster import EMPTY_CLUSTER, apply_all
from bus.cluster_metadata.cluster_records import BrokerRegistered
from bus.errors import ErrorCode
from bus.model import ProducerStamp
from bus.runtime.metadata.producer_uses import ProducerUses
from bus.runtime.metadata.producers import Producers


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
    unused = cast(Any, None)
    producers = Producers(
        cast(Any, SimpleNamespace(cluster=cluster, is_leading=is_leading)),
        ProducerUses(0),
        broker_id=0,
        expiration_ms=1,
        now_ms=unused,
        calls=unused,
        tasks=unused,
        wait_until_followed=unused,
    )
    refused = producers.check(ProducerStamp(5, 0, 0))
    assert refused is not None
    assert refused.code is code
