"""Memory of groups is bounded, and each bound is refused by name only to what would grow beyond it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bus.consumer_groups import requests as rq
from bus.consumer_groups.bounds import GroupBounds, GroupTotals
from bus.errors import ErrorCode, Refused
from tests.support.group_bench import PARTITION, RULES, GroupBench, commit_of, join_of, run, sync_of

TAKEN = rq.OffsetsCommitted((None,))


def refusal(answer: Any) -> Refused:
    refused = answer.refused if isinstance(answer, rq.JoinRefused) else answer
    assert isinstance(refused, Refused), answer
    return refused


def test_totals_follow_the_groups_also_through_a_load() -> None:
    async def scenario(bench: GroupBench) -> None:
        await bench.member("g", "a")
        await bench.commit("other", 1)
        await bench.submit(join_of("h", None), "pending-1")
        assert (bench.totals.members, bench.totals.offsets) == (2, 1)
        member_bytes = bench.totals.member_bytes
        assert member_bytes == bench.shard.states["g"].data_bytes > 0
        successor = await bench.reopened().loaded()
        assert (successor.totals.members, successor.totals.offsets) == (1, 1), "a pending member is in no log"
        assert successor.totals.member_bytes == member_bytes
        await successor.submit(rq.LeaveGroup("g", (rq.LeavingMember("a-1"),)))
        await successor.submit(rq.DeleteGroup("other"))
        assert (successor.totals.members, successor.totals.member_bytes, successor.totals.offsets) == (0, 0, 0)
        await successor.close()

    run(scenario)


def test_new_member_beyond_the_bound_is_refused_and_those_that_are_there_go_on() -> None:
    async def scenario(bench: GroupBench) -> None:
        joined = await bench.member("g", "a")
        refused = refusal(await bench.submit(join_of("h", None), "b-1"))
        assert refused.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "group.members.count.max" in refused.message
        again = await bench.submit(join_of("g", "a", joined.member_id))
        assert isinstance(again, rq.Joined)
        assert isinstance(await bench.submit(join_of("g", "a"), "a-2"), rq.Joined), "it takes its own place"

    run(scenario, bounds=GroupBounds(members_max=1))


def test_what_members_say_and_are_given_is_bounded_and_those_that_are_there_may_keep_what_they_have() -> None:
    async def scenario(bench: GroupBench) -> None:
        joined = await bench.member("g", "a")
        refused = refusal(await bench.submit(join_of("h", "b"), "b-1"))
        assert "group.members.bytes.max" in refused.message
        again = await bench.submit(join_of("g", "a", joined.member_id))
        assert isinstance(again, rq.Joined)
        large = {again.member_id: rq.Assignment(b"a" * 5_000)}
        assert "group.members.bytes.max" in refusal(await bench.submit(sync_of("g", again, "a", large))).message
        small = {again.member_id: rq.Assignment(b"a")}
        assert isinstance(await bench.submit(sync_of("g", again, "a", small)), rq.Synced)

    run(scenario, bounds=GroupBounds(members_bytes_max=100))


def test_one_client_is_given_so_many_ids_until_they_expire_and_others_are_not_held_up() -> None:
    async def scenario(bench: GroupBench) -> None:
        for number in range(2):
            answer = await bench.submit(join_of(f"g{number}", None), f"id-{number}")
            assert refusal(answer).code is ErrorCode.MEMBER_ID_REQUIRED
        refused = refusal(await bench.submit(join_of("g2", None), "id-2"))
        assert refused.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "client /h" in refused.message
        other = replace(join_of("g3", None), client_host="/other")
        assert refusal(await bench.submit(other, "id-3")).code is ErrorCode.MEMBER_ID_REQUIRED
        bench.below.clock.advance(6_000)
        assert refusal(await bench.submit(join_of("g2", None), "id-4")).code is ErrorCode.MEMBER_ID_REQUIRED

    run(scenario, bounds=GroupBounds(members_per_client_max=2))


def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    totals = GroupTotals(GroupBounds(members_per_client_max=2))

    def join_from(host: str) -> Refused | None:
        return totals.check(replace(join_of("g", None), client_host=host), None, now_ms=0)

    assert [join_from(f"/2001:db8::{number}") for number in (1, 2)] == [None, None]
    refused = join_from("/2001:db8::3")
    assert refused is not None
    assert "client 2001:db8::/64" in refused.message
    assert join_from("/2001:db8:0:1::1") is None


def test_clients_are_not_all_looked_through_for_each_new_one() -> None:
    totals, looks = GroupTotals(GroupBounds()), 0
    for number in range(3_000):
        known = totals._given
        assert totals.check(replace(join_of("g", None), client_host=f"/{number}"), None, now_ms=0) is None
        looks += totals._given is not known
    assert looks == 2, "at 1,000 clients, and at twice as many"
    assert totals.check(join_of("g", None), None, now_ms=10**9) is None
    assert len(totals._given) == 3_001
    for number in range(1_000):
        assert totals.check(replace(join_of("g", None), client_host=f"/n{number}"), None, now_ms=10**9) is None
    assert len(totals._given) <= 1_001, "expired ones are forgotten"


def test_join_whose_session_timeout_is_refused_takes_none_of_the_ids_of_its_client() -> None:
    async def scenario(bench: GroupBench) -> None:
        too_long = replace(join_of("g", None), session_timeout_ms=2**31 - 1)
        for _ in range(3):
            assert refusal(await bench.submit(too_long, "x")).code is ErrorCode.INVALID_SESSION_TIMEOUT
        assert refusal(await bench.submit(join_of("g", None), "id-1")).code is ErrorCode.MEMBER_ID_REQUIRED

    run(scenario, bounds=GroupBounds(members_per_client_max=2))


def test_new_offsets_beyond_the_bound_are_refused_and_those_that_are_there_move_on() -> None:
    async def scenario(bench: GroupBench) -> None:
        assert await bench.commit("g", 1) == TAKEN
        refused = refusal(await bench.commit("h", 1))
        assert refused.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "group.offsets.count.max" in refused.message
        assert await bench.commit("g", 2) == TAKEN
        other = replace(commit_of("g", 1).offsets[0], partition=PARTITION._replace(partition=1))
        assert "group.offsets.count.max" in refusal(await bench.commit("g", 1, offsets=(other,))).message

    run(scenario, bounds=GroupBounds(offsets_max=1))


def test_pending_members_of_a_group_are_bounded() -> None:
    async def scenario(bench: GroupBench) -> None:
        assert refusal(await bench.submit(join_of("g", None), "id-1")).code is ErrorCode.MEMBER_ID_REQUIRED
        refused = refusal(await bench.submit(join_of("g", None), "id-2"))
        assert refused.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "have not joined" in refused.message
        assert isinstance(await bench.submit(join_of("g", None, "id-1")), rq.Joined)

    run(scenario, rules=replace(RULES, pending_members_max=1))


def test_pending_offsets_count_as_committed_ones_and_may_be_committed() -> None:
    transaction = rq.TransactionKey(7, 3)
    offset = rq.OffsetToCommit(PARTITION, "id", 5)
    other = replace(offset, partition=PARTITION._replace(partition=1))
    commit = rq.TxnOffsetCommit("g", transaction, 0, -1, "", None, (offset,))

    async def scenario(bench: GroupBench) -> None:
        assert await bench.submit(commit) == TAKEN
        assert bench.totals.offsets == 1
        for refused in (
            await bench.submit(replace(commit, sequence=1, offsets=(other,))),
            await bench.submit(replace(commit, transaction=rq.TransactionKey(8, 0))),
            await bench.submit(commit_of("h", 1)),
        ):
            assert refusal(refused).code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert "group.offsets.count.max" in refusal(refused).message
        assert await bench.submit(replace(commit, sequence=1)) == TAKEN
        successor = await bench.reopened().loaded()
        assert successor.totals.offsets == 1
        await successor.submit(rq.ApplyOffsets("g", transaction))
        assert successor.totals.offsets == 1
        await successor.submit(rq.DeleteGroup("g"))
        assert successor.totals.offsets == 0
        await successor.close()

    run(scenario, bounds=GroupBounds(offsets_max=1))
