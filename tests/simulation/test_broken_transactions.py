"""Each judge of transactions sees its promise broken: a rule is taken out of the code, and some seed shows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import transaction_bugs as bugs
from tests.simulation.broker_world import BrokerWorld, simulate
from tests.simulation.coordinator_journal import CoordinatorJournal
from tests.simulation.test_broker_transactions import (
    Scenario,
    commit_alone,
    commit_alone_and_delete,
    new_world,
    transact,
)

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


@pytest.mark.parametrize(
    ("break_it", "promises"),
    [
        (bugs.broken_resolution, ("RowsFollowDecisions", "DecisionsAreFinal", "EpochsAreGivenOnce")),
        (bugs.broken_taking_up, ("RowsFollowDecisions", "DecisionsAreFinal", "EpochsAreGivenOnce")),
        (bugs.broken_time_out, ("RowsFollowDecisions", "DecisionsAreFinal")),
        (bugs.broken_refusal, ("RowsFollowDecisions", "DecisionsAreFinal")),
        (bugs.broken_anchor, ("RowsFollowDecisions",)),
        (bugs.broken_numbers, ("RowsFollowDecisions", "DecisionsAreFinal")),
    ],
)
def test_broken_promise_of_commits_that_versions_decide_is_seen(
    break_it: Callable[[pytest.MonkeyPatch], None], promises: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    check_seen(*promises, scenario=commit_alone)


def test_producer_that_is_fenced_for_a_topic_that_is_deleted_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bugs.broken_giving_up(monkeypatch)
    check_seen("DecisionsAreFinal", scenario=commit_alone_and_delete, what="fenced by no other instance")


def check_seen(*promises: str, scenario: Scenario = transact, what: str = "") -> None:
    def judged_by_one(seed: int) -> BrokerWorld:
        world = new_world(seed)
        world.invariants = [
            found
            for found in world.invariants
            if isinstance(found, CoordinatorJournal) or type(found).__name__ in (*promises, "RowsFollowDecisions")
        ]
        return world

    seen: list[str] = []
    for seed in _SEEDS:
        try:
            simulate(seed, judged_by_one, scenario)
        except AssertionError as failure:  # what is broken may be met by something else first
            seen.append(str(failure).partition("\n")[0])
            if what in seen[-1] and any(promise in seen[-1] for promise in promises):
                return
    pytest.fail(f"expected {promises} to be broken, found {seen}")
