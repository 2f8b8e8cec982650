"""Requests about a group as a hostile client makes them: right but for one field.

Strategies over messages, so that what is tested stands behind the same door as a client's bytes. What has to be right
for a request to come far, the ids of members and the generation, is given by whoever draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from bus.grpc_api.v1 import bus_pb2 as pb

TOPIC, PARTITIONS = "orders", 3
GOOD_TEXTS = st.sampled_from(["a", "Ab.c_d-1", "größe", "😀", "x" * 200, '"', "\\", "'", "%s", "{}", "null"])
BAD_TEXTS = st.sampled_from(["", "new\nline", "\r", "\x00", "\x1b[2J", "\x7f", "\u0085", "\u2028", "y" * 2_049])
TEXTS = GOOD_TEXTS | BAD_TEXTS | st.text(st.characters(codec="utf-8"), max_size=4)
INTS = st.sampled_from([-(2**31), -5, -2, -1, 0, 1, 2, 7, 5_999, 6_000, 1_800_001, 2**31 - 1])
LONGS = INTS | st.sampled_from([-(2**63), 2**31, 2**63 - 1])
BYTES = st.binary(max_size=6) | st.sampled_from([b"", b"\xff\xff", b"\x0a\x01\xff"])
KINDS = (
    "join",
    "sync",
    "commit",
    "join",
    "sync",
    "commit",
    "heartbeat",
    "leave",
    "fetch",
    "forget",
    "describe",
    "delete",
)


class _Hostility:
    """A source of fields of which one is bad: the one with the drawn number."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self._left: int = draw(st.integers(0, 12))

    def pick(self, good: Any, bad: st.SearchStrategy[Any]) -> Any:
        self._left -= 1
        return self.draw(bad) if self._left == 0 else good

    def topic_partitions(self) -> list[pb.TopicPartitions]:
        number = self.pick(self.draw(st.integers(0, PARTITIONS - 1)), INTS)
        return [pb.TopicPartitions(topic=self.pick(TOPIC, TEXTS), partitions=[0, number])]

    def subscription(self) -> bytes:
        right = pb.ConsumerSubscription(
            topics=[TOPIC, self.pick("audit", TEXTS)],
            owned=self.topic_partitions(),
            generation=self.pick(-1, INTS),
            rack=self.pick("", TEXTS),
        )
        return self.pick(right.SerializeToString(), BYTES)  # type: ignore[no-any-return]  # bytes of either

    def assignment(self) -> bytes:
        right = pb.ConsumerAssignment(partitions=self.topic_partitions())
        return self.pick(right.SerializeToString(), BYTES)  # type: ignore[no-any-return]  # bytes of either

    def offset(self) -> pb.OffsetCommitPartition:
        return pb.OffsetCommitPartition(
            topic=self.pick(TOPIC, TEXTS),
            partition=self.pick(self.draw(st.integers(0, PARTITIONS - 1)), INTS),
            offset=self.pick(5, LONGS),
            leader_epoch=self.pick(-1, INTS),
            metadata=self.pick("m", TEXTS | st.sampled_from(["m" * 4_096, "m" * 4_097])),
        )


@st.composite
def group_requests(
    draw: st.DrawFn, group_id: str, members: Sequence[tuple[str, str | None]], generation: int
) -> tuple[str, Any]:
    """A kind, and the request; `members` are those that the group knows, each with its instance id."""
    hostile = _Hostility(draw)
    pick = hostile.pick
    kind = draw(st.sampled_from(KINDS))
    member_id, instance_id = draw(st.sampled_from([*members, ("", None), ("", "till")]))
    group = pick(group_id, BAD_TEXTS)
    member = pick(member_id, TEXTS)
    instance = pick(instance_id, st.none() | TEXTS | st.just("i" * 250))
    number = pick(generation, INTS)
    match kind:
        case "join":
            protocol = pb.GroupProtocol(name=pick("range", TEXTS), metadata=hostile.subscription())
            return kind, pb.JoinGroupRequest(
                group_id=group,
                member_id=member,
                group_instance_id=instance,
                session_timeout_ms=pick(60_000, INTS),
                rebalance_timeout_ms=pick(20_000, INTS),
                protocol_type=pick("consumer", TEXTS),
                protocols=[protocol] * pick(1, st.sampled_from([0, 2, 101])),
                client_id=pick("client", TEXTS),
                reason=pick("", TEXTS),
            )
        case "sync":
            data = hostile.assignment()
            others = [one for one, _ in members]
            return kind, pb.SyncGroupRequest(
                group_id=group,
                generation=number,
                member_id=member,
                group_instance_id=instance,
                protocol_type=pick("", st.just("consumer") | TEXTS),
                protocol=pick("", st.just("range") | TEXTS),
                assignments=[
                    pb.MemberAssignment(member_id=one, assignment=data) for one in [*others, pick("gone", TEXTS)]
                ],
            )
        case "heartbeat":
            return kind, pb.HeartbeatRequest(
                group_id=group, generation=number, member_id=member, group_instance_id=instance
            )
        case "leave":
            leaving = pb.LeavingMember(member_id=member, group_instance_id=instance, reason=pick("", TEXTS))
            return kind, pb.LeaveGroupRequest(group_id=group, members=[leaving] * draw(st.integers(0, 2)))
        case "commit":
            is_simple = draw(st.booleans())
            return kind, pb.OffsetCommitRequest(
                group_id=group,
                generation=-1 if is_simple else number,
                member_id="" if is_simple else member,
                group_instance_id=None if is_simple else instance,
                partitions=[hostile.offset(), hostile.offset()],
            )
        case "fetch":
            return kind, pb.OffsetFetchGroup(
                group_id=group,
                all_partitions=draw(st.booleans()),
                topics=hostile.topic_partitions(),
                member_id=draw(st.sampled_from(["", member])),
                generation=number,
            )
        case "forget":
            return kind, pb.OffsetDeleteRequest(group_id=group, topics=hostile.topic_partitions())
        case _:
            return kind, pb.ListedGroup(group_id=group)
