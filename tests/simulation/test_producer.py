"""What an idempotent producer promises, through everything that a network and a broker may do to it."""

from __future__ import annotations

import pytest

from bus.errors import BusError, ErrorCode
from tests.simulation.producer_world import NO_FAULTS, Faults, World

SEEDS = 1_500


def play(world: World, records: int) -> None:
    """Bursts of records with pauses between them, then peace until everything has its outcome."""
    for value in range(records):
        world.send(value, world.random.randrange(len(world.logs)))
        if world.random.randrange(4) == 0:
            world.run(world.now + world.random.uniform(0, 0.05))
    world.settle()


def check_every_future_is_resolved_once(world: World) -> None:
    assert all(future.done() for _, _, future in world.futures)
    assert all(world.resolved[value] == 1 for value, _, _ in world.futures)


def check_accepted_is_there_once_and_failed_at_most_once(world: World) -> None:
    for value, partition, future in world.futures:
        offsets = [offset for offset, row in enumerate(world.logs[partition].rows) if row.value == value]
        error = future.exception(0)
        if error is None:
            assert len(offsets) == 1, f"record {value}: accepted, found at {offsets}"
            assert future.result(0).offset in (offsets[0], -1), f"record {value} is at {offsets[0]}"
            assert future.result(0).partition == partition
        else:
            assert len(offsets) <= 1, f"record {value}: failed, found at {offsets}"


def check_order(world: World) -> None:
    for log in world.logs:
        values = [row.value for row in log.rows]
        assert values == sorted(values), "records of one partition are in the order of the calls"


def check_refused_records_fail_alone(world: World) -> None:
    for value, _, future in world.futures:
        error = future.exception(0)
        is_too_large = error is not None and error.code is ErrorCode.MESSAGE_TOO_LARGE
        assert is_too_large == world.is_refused(value) or (error is not None and not is_too_large), (
            f"record {value}: {error}"
        )


def check_memory_is_free(world: World) -> None:
    assert world.sender.pool.available_bytes == world.sender.pool.total_bytes


def check_all(world: World) -> None:
    check_every_future_is_resolved_once(world)
    check_accepted_is_there_once_and_failed_at_most_once(world)
    check_order(world)
    check_refused_records_fail_alone(world)
    check_memory_is_free(world)


@pytest.mark.parametrize("block", range(10))
def test_any_fault_leaves_each_record_in_the_log_once_and_in_order(block: int) -> None:
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        world = World(seed, Faults())
        try:
            play(world, 60)
            check_all(world)
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


@pytest.mark.parametrize("block", range(4))
def test_short_delivery_timeouts_give_up_records_but_never_double_or_reorder_the_rest(block: int) -> None:
    for seed in range(block * 100, (block + 1) * 100):
        world = World(seed, Faults(), delivery_timeout_ms=150, request_timeout_ms=100)
        try:
            play(world, 60)
            check_all(world)
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


def test_without_faults_every_record_is_accepted_with_its_offset() -> None:
    world = World(0, NO_FAULTS)
    play(world, 500)
    check_all(world)
    for log in world.logs:
        by_value = {row.value: offset for offset, row in enumerate(log.rows)}
        for value, partition, future in world.futures:
            if world.logs[partition] is log:
                assert future.result(0).offset == by_value[value]


def test_closing_fails_what_is_left_and_resolves_it_once() -> None:
    world = World(3, Faults(silent_stream=1))
    for value in range(50):
        world.send(value, value % 2)
    world.run(0.05)
    failed, _ = world.sender.close(BusError(ErrorCode.REQUEST_TIMED_OUT, "closed"))
    errors = [future.exception(0) for _, _, future in world.futures]
    assert failed == sum(error is not None for error in errors) > 0
    check_every_future_is_resolved_once(world)
    check_memory_is_free(world)
