"""Several failures of one call as one error: what they have in common is said once."""

from __future__ import annotations

import pytest

from bus.client.admin.broker_calls import raise_failures
from bus.errors import BusError, ErrorCode

POLICY = ErrorCode.POLICY_VIOLATION.value


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([("t-0", POLICY, "t-0: no"), ("t-1", 0, "")], "t-0: no"),
        (
            [("t-0", POLICY, "t-0: no"), ("t-1", POLICY, "t-1: no")],
            "2 of 2 failed: 't-0', 't-1': POLICY_VIOLATION: no",
        ),
        (
            [(f"t-{n}", POLICY, f"t-{n}: no") for n in range(9)],
            "9 of 9 failed: 't-0', 't-1', 't-2', 't-3' and 5 more: POLICY_VIOLATION: no",
        ),
        (
            [("t-0", POLICY, "no"), ("t-1", POLICY, "never")],
            "2 of 2 failed: 't-0': POLICY_VIOLATION: no; 't-1': POLICY_VIOLATION: never",
        ),
    ],
    ids=["one", "all for one reason", "many for one reason", "two reasons"],
)
def test_failures_are_told_with_what_they_have_in_common_once(results: list[tuple[str, int, str]], said: str) -> None:
    with pytest.raises(BusError) as caught:
        raise_failures(results)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert caught.value.message == said
