"""A broker that follows the cluster metadata ends with the partitions of the last state, wherever it is interrupted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.cluster_metadata.cluster_draft import ClusterRecord
from bus.cluster_metadata.cluster_records import (
    LeaderChanged,
    LeaderEpochsRaised,
    PartitionsAdded,
    ProducerIdsAllocated,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    apply,
)
from bus.cluster_metadata.cluster_state import EMPTY_CLUSTER, ClusterState, HostingPlan, Lead, plan_hosting
from bus.errors import ErrorCode
from bus.model import TopicPartition
from tests.support.cluster_states import partitions_led_by
from tests.support.host_bench import BROKERS, NO_TOPICS, HostBench, run_host
from tests.support.partition_bench import code

NAMES = ("a", "b", "c")


@dataclass
class Open:
    lead: Lead
    retention: str | None


Hosted = dict[str, dict[int, Open]]


@st.composite
def records(draw: st.DrawFn, state: ClusterState, number: int) -> ClusterRecord:
    """One that can be applied to `state`."""
    name = draw(st.sampled_from(NAMES))
    broker = draw(st.sampled_from(BROKERS))
    topic = state.topics.get(name)
    if topic is None:
        return TopicCreated(name, f"id-{number}", draw(st.integers(1, 3)), broker)
    partition = draw(st.integers(0, len(topic.partitions) - 1))
    epoch = topic.partitions[partition].leader_epoch + 1
    return draw(
        st.sampled_from(
            [
                TopicDeleted(name, topic.topic_id),
                LeaderChanged(name, topic.topic_id, partition, broker, epoch),
                LeaderChanged(name, topic.topic_id, partition, 1 - broker, epoch),
                PartitionsAdded(name, topic.topic_id, len(topic.partitions) + 1, broker),
                TopicConfigChanged(name, topic.topic_id, "retention.ms", str(number)),
                LeaderEpochsRaised(broker),
                ProducerIdsAllocated(broker, state.producers.next_producer_id + 1000),
            ]
        )
    )


def carry_out(hosted: Hosted, plan: HostingPlan, state: ClusterState, steps_max: int | None = None) -> bool:
    """False if it was interrupted."""
    steps = [
        *((_drop, (hosted, name)) for name in [*plan.retires, *plan.closes]),
        *((_open, (hosted, name, lead, state)) for name, lead in plan.opens.items()),
        *((_configure, (hosted, topic.name, state)) for topic in plan.configures),
    ]
    for step, arguments in steps[:steps_max]:
        step(*arguments)  # type: ignore[operator]
    return steps_max is None or steps_max >= len(steps)


def _drop(hosted: Hosted, name: TopicPartition) -> None:
    del hosted[name.topic][name.partition]


def _open(hosted: Hosted, name: TopicPartition, lead: Lead, state: ClusterState) -> None:
    there = hosted.setdefault(name.topic, {})
    assert name.partition not in there, f"{name} is open already"
    there[name.partition] = Open(lead, state.topics[name.topic].configs.get("retention.ms"))


def _configure(hosted: Hosted, topic: str, state: ClusterState) -> None:
    for found in hosted[topic].values():
        found.retention = state.topics[topic].configs.get("retention.ms")


@given(st.data())
def test_interrupted_follower_ends_with_exactly_the_partitions_of_the_last_state(data: st.DataObject) -> None:
    state = followed = NO_TOPICS
    hosted: Hosted = {}
    for number in range(data.draw(st.integers(1, 20))):
        state = apply(state, data.draw(records(state, number)))
        if data.draw(st.booleans()):  # else it does not learn of this state
            plan = plan_hosting(followed, state, hosted, broker_id=0)
            is_whole = carry_out(hosted, plan, state, data.draw(st.none() | st.integers(0, 4)))
            followed = state if is_whole else EMPTY_CLUSTER
    carry_out(hosted, plan_hosting(followed, state, hosted, broker_id=0), state)
    assert {
        TopicPartition(topic, number): (found.lead, found.retention)
        for topic, partitions in hosted.items()
        for number, found in partitions.items()
    } == {
        name: (Lead(topic.topic_id, leadership.leader_epoch), topic.configs.get("retention.ms"))
        for name in partitions_led_by(state, 0)
        if (topic := state.topics[name.topic]) and (leadership := state.leadership(name))
    }
    again = plan_hosting(state, state, hosted, broker_id=0)
    assert (again.opens, again.closes, again.retires) == ({}, (), ())


@settings(max_examples=settings.default.max_examples // 2)  # each starts an event loop
@given(st.data())
def test_host_whose_openings_end_in_any_order_serves_exactly_the_partitions_of_the_last_state(
    data: st.DataObject,
) -> None:
    async def scenario(bench: HostBench) -> None:
        names: set[TopicPartition] = set()
        for number in range(data.draw(st.integers(1, 12))):
            state = bench.follow(data.draw(records(bench.cluster, number)))
            names |= {TopicPartition(topic.name, at) for topic in state.topics.values() for at in range(9)}
            for _ in range(data.draw(st.integers(0, 3))):
                await asyncio.sleep(0)
                if bench.calls.gates:
                    bench.calls.let_go(data.draw(st.integers(0, len(bench.calls.gates) - 1)))
        await bench.settle()
        led = set(partitions_led_by(state, 0))
        assert {partition.name for partition in bench.host.partitions} == led
        for name in led:
            topic, leadership = state.topics[name.topic], state.leadership(name)
            assert bench.serving(name)._table is bench.storage.tables[topic.topic_id, name.partition]
            assert leadership is not None
            assert bench.serving(name).state.leader_epoch == leadership.leader_epoch
            assert bench.serving(name).stopped is None
        for name in names - led:
            is_led = state.leadership(name) is not None
            expected = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_led else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert code(bench.host.find(name)) is expected

    run_host(scenario)
