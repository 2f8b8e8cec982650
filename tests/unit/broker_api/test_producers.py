from __future__ import annotations

import pytest

from bus.broker_api.transactions import ClaimedStamp, check_stamp
from bus.cluster_metadata.producer_ids import PRODUCER_EPOCH_MAX as EPOCH_MAX
from bus.errors import ErrorCode, Refused
from bus.model import ProducerStamp
from bus.partition_log.appends import ACKS_ALL, ACKS_LEADER, ACKS_NONE


def test_batch_without_a_producer_has_no_stamp() -> None:
    assert check_stamp(ClaimedStamp(None, 0, 0), ACKS_NONE) is None


@pytest.mark.parametrize("acks", [ACKS_ALL, ACKS_LEADER])
def test_batch_of_a_producer_has_its_stamp(acks: int) -> None:
    claimed = ClaimedStamp(7, EPOCH_MAX, 2**31 - 1)
    assert check_stamp(claimed, acks) == ProducerStamp(7, EPOCH_MAX, 2**31 - 1)


@pytest.mark.parametrize(
    ("claimed", "acks", "said"),
    [
        (ClaimedStamp(None, 1, 0), ACKS_ALL, "expected a producer id with producer epoch 1"),
        (ClaimedStamp(None, 0, 5), ACKS_ALL, "expected a producer id with producer epoch 0 and base sequence 5"),
        (ClaimedStamp(-1, 0, 0), ACKS_ALL, "expected a producer id from 0 on, found -1"),
        (ClaimedStamp(7, -1, 0), ACKS_ALL, "expected a producer epoch from 0 to 32767, found -1"),
        (
            ClaimedStamp(7, EPOCH_MAX + 1, 0),
            ACKS_ALL,
            "expected a producer epoch from 0 to 32767, found 32768",
        ),
        (ClaimedStamp(7, 0, -1), ACKS_ALL, "expected a base sequence from 0 to 2147483647, found -1"),
        (ClaimedStamp(7, 0, 0), ACKS_NONE, "expected acks -1 or 1 of idempotent producer 7, found 0"),
    ],
)
def test_stamp_that_no_producer_was_given_is_refused(claimed: ClaimedStamp, acks: int, said: str) -> None:
    refused = check_stamp(claimed, acks)
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert refused.message.startswith(said)
