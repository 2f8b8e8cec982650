"""Promises of an idempotent producer, through everything that a network and a broker may do to it."""

from __future__ import annotations

from typing import Any

import pytest

from bus.errors import BusError, ErrorCode
from tests.simulation.producer_world import NO_FAULTS, Client, Faults, World

SEEDS = 1_500


def play(world: World, records: int) -> None:
    """Bursts of records with pauses between them, then peace until everything has its outcome."""
    for value in range(records):
        world.send(value, world.random.randrange(len(world.logs)))
        if world.random.randrange(4) == 0:
            world.run(world.now_ms + world.random.uniform(0, world.random.choice((50, 50, 50, 1_000))))
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
            assert future.result(0).timestamp_ms == value
        else:
            assert len(offsets) <= 1, f"record {value}: failed, found at {offsets}"


def check_order(world: World) -> None:
    for log in world.logs:
        values = [row.value for row in log.rows]
        assert values == sorted(values), "records of one partition are in the order of the calls"
        assert all(row.time_ms == row.value for row in log.rows), "each record has its own time"


def check_refused_records_fail_alone(world: World) -> None:
    for value, _, future in world.futures:
        error = future.exception(0)
        is_too_large = error is not None and error.code is ErrorCode.MESSAGE_TOO_LARGE
        assert is_too_large == world.is_refused(value) or (error is not None and not is_too_large), (
            f"record {value}: {error}"
        )


def check_memory_is_free(world: World) -> None:
    assert world.engine.pool.available_bytes == world.engine.pool.total_bytes


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
    world.run(50)
    failed, _ = world.engine.close(BusError(ErrorCode.REQUEST_TIMED_OUT, "closed"))
    errors = [future.exception(0) for _, _, future in world.futures]
    assert failed == sum(error is not None for error in errors) > 0
    check_every_future_is_resolved_once(world)
    check_memory_is_free(world)


# ---------------------------------------------------------------- moving leaders, keys, windows

MOVING = Faults(moved_leader=8, unknown_topic=6)


def play_with_keys(world: World, records: int) -> None:
    for value in range(records):
        if world.random.randrange(2):
            world.send(value, None, b"k%d" % world.random.randrange(9))
        else:
            world.send(value, world.random.randrange(len(world.logs)), b"k" if world.random.randrange(2) else None)
        if world.random.randrange(4) == 0:
            world.run(world.now_ms + world.random.uniform(0, 50))
    world.settle()


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5])
def test_moving_leaders_and_brokers_that_lag_behind_neither_lose_nor_double_nor_reorder(window: int) -> None:
    for seed in range(window * 100, (window + 1) * 100):
        world = World(seed, MOVING, partitions=4, max_in_flight_requests_per_connection=window, linger_ms=seed % 3)
        try:
            play_with_keys(world, 60)
            check_all(world)
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


def test_moving_leaders_and_short_delivery_timeouts_double_nothing() -> None:
    for seed in range(200):
        world = World(seed, MOVING, partitions=3, delivery_timeout_ms=150, request_timeout_ms=100)
        try:
            play_with_keys(world, 60)
            check_all(world)
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


def test_with_keys_and_without_faults_every_record_is_accepted() -> None:
    world = World(0, NO_FAULTS, partitions=5)
    play_with_keys(world, 300)
    check_all(world)
    assert all(future.exception(0) is None for _, _, future in world.futures)


# ---------------------------------------------------------------- named producers


def check_named_log(world: World, *clients: Client) -> None:
    for partition, log in enumerate(world.logs):
        sequences = [row.stamp.base_sequence for row in log.rows if row.stamp is not None]
        assert sequences == list(range(len(log.rows))), f"partition {partition}: the numbers have no gap: {sequences}"
        epochs = [row.stamp.producer_epoch for row in log.rows if row.stamp is not None]
        assert epochs == sorted(epochs), f"partition {partition}: nothing of an older epoch comes later"
        for client in clients:
            given = [value for value, asked, _ in client.futures if asked == partition]
            mine = [row.value for row in log.rows if row.value in set(given)]
            assert mine == given[: len(mine)], f"partition {partition}: given {given}, found {mine}"
    for partition, _, epoch, row_count in world.cluster.fenced_rows:
        for row in world.logs[partition].rows[row_count:]:
            assert row.stamp is not None
            assert row.stamp.producer_epoch >= epoch, f"partition {partition}: resumed at {epoch}, then {row}"


def check_client(world: World, client: Client) -> None:
    assert all(future.done() for _, _, future in client.futures)
    assert all(client.resolved[value] == 1 for value, _, _ in client.futures)
    assert client.engine.pool.available_bytes == client.engine.pool.total_bytes
    for value, partition, future in client.futures:
        offsets = [offset for offset, row in enumerate(world.logs[partition].rows) if row.value == value]
        if future.exception(0) is None:
            assert len(offsets) == 1, f"record {value}: accepted, found at {offsets}"
            assert future.result(0).offset in (offsets[0], -1)


def send_unless_fenced(client: Client, value: int, partition: int) -> None:
    try:
        client.send(value, partition)
    except BusError as error:
        if error.code is not ErrorCode.PRODUCER_FENCED:
            raise


def take_over(seed: int, faults: Faults, **configs: Any) -> None:
    """A younger instance begins while requests of the older one are under way, and the older one does not know."""
    world = World(seed, faults, name="loader", **configs)
    older = world.client
    begins_at = world.random.randrange(5, 40)
    younger: Client | None = None
    for value in range(60):
        partition = world.random.randrange(len(world.logs))
        if younger is None and value >= begins_at and older.engine.identity is not None:
            younger = Client(world, name="loader", **configs)
        if younger is not None and world.random.randrange(2):
            younger.send(1_000 + value, partition)
        else:
            send_unless_fenced(older, value, partition)
        if world.random.randrange(4) == 0:
            world.run(world.now_ms + world.random.uniform(0, 50))
    world.settle()
    if younger is None:  # the older one got its identity only when all was over
        return
    for client in (older, younger):
        check_client(world, client)
    check_named_log(world, older, younger)
    if not faults.refused_record and not faults.unknown_topic and "delivery_timeout_ms" not in configs:
        assert all(future.exception(0) is None for _, _, future in younger.futures), "the younger one may send"


@pytest.mark.parametrize(
    "faults",
    [
        Faults(refused_record=0),
        Faults(refused_record=0, moved_leader=8),
        Faults(moved_leader=8, unknown_topic=6),
        NO_FAULTS,
    ],
)
def test_younger_instance_of_a_name_goes_on_where_the_older_one_ended_and_nothing_of_that_follows(
    faults: Faults,
) -> None:
    for seed in range(150):
        try:
            take_over(seed, faults, max_in_flight_requests_per_connection=1 + seed % 5)
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken


def test_named_producer_with_short_delivery_timeouts_leaves_no_gap() -> None:
    for seed in range(150):
        try:
            take_over(seed, Faults(moved_leader=8), delivery_timeout_ms=150, request_timeout_ms=100)
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
