"""Each judge of transactions sees its promise broken: a rule is taken out of the code, and some seed shows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import transaction_bugs as bugs
from tests.simulation.broker_world import BrokerWorld, simulate
from tests.simulation.coordinator_journal import CoordinatorJournal
from tests.simulation.test_broker_transactions import new_world, transact

pytestmark = pytest.mark.timeout(300)

_SEEDS = range(25)


@pytest.mark.parametrize(
    ("break_it", "promise"),
    [
        (bugs.broken_repeats, "DecisionsAreFinal"),
        (bugs.broken_identities, "MessagesNameTheirTransaction"),
        (bugs.broken_ends, "MessagesNameTheirTransaction"),
        (bugs.broken_epochs, "EpochsAreGivenOnce"),
        (bugs.broken_replay, "MemoryIsTheLog"),
        (bugs.broken_stability, "OffsetsFollowDecisions"),
        (bugs.broken_settling, "OffsetsFollowDecisions"),
        (bugs.broken_rows, "RowsFollowDecisions"),
        (bugs.broken_commit, "RowsFollowDecisions"),
        (bugs.broken_staging, "StagedIsKept"),
        (bugs.broken_errors, "ErrorsAreOfTheTable"),
    ],
)
def test_broken_promise_is_seen(
    break_it: Callable[[pytest.MonkeyPatch], None], promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    check_seen(promise)


def check_seen(promise: str) -> None:
    def judged_by_one(seed: int) -> BrokerWorld:
        world = new_world(seed)
        world.invariants = [
            found
            for found in world.invariants
            if isinstance(found, CoordinatorJournal) or type(found).__name__ in (promise, "RowsFollowDecisions")
        ]
        return world

    seen: list[str] = []
    for seed in _SEEDS:
        try:
            simulate(seed, judged_by_one, transact)
        except AssertionError as failure:  # what is broken may be met by something else first
            seen.append(str(failure).partition("\n")[0])
            if promise in seen[-1]:
                return
    pytest.fail(f"expected {promise} to be broken, found {seen}")
