"""Who held which partition before: what members claim, made free of contradictions.

Guards two promises. A member that slept through a rebalance does not get back what another one holds by now: of two
claims the one of the later generation counts. And no guess is made between two equal ones: then nobody held it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from bus.client.assignors.assignor import NO_GENERATION
from bus.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Claim:
    """What a member says it held, and since which generation."""

    partitions: Iterable[TopicPartition] = ()
    generation: int = NO_GENERATION


def strongest_claims(claims: Mapping[str, Claim]) -> dict[TopicPartition, str | None]:
    """Of all that somebody claims, whose claim counts; None: nobody's, since two are equal."""
    strongest: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id, claim in claims.items():
        for partition in dict.fromkeys(claim.partitions):
            rival = strongest.get(partition)
            if rival is None or claim.generation > rival[0]:
                strongest[partition] = (claim.generation, member_id)
            elif claim.generation == rival[0]:
                strongest[partition] = (claim.generation, None)
    return {partition: holder for partition, (_, holder) in strongest.items()}


def settle_claims(
    claims: Mapping[str, Claim], partitions: Mapping[str, int], subscribers: Mapping[str, Collection[str]]
) -> dict[str, list[TopicPartition]]:
    """For each member what it held, in the order of its claim: partitions that exist, of topics that it still
    subscribes to, each with one member at most."""
    entitled = {topic: frozenset(members) for topic, members in subscribers.items()}
    held: dict[str, list[TopicPartition]] = {member_id: [] for member_id in claims}
    for partition, holder in strongest_claims(claims).items():
        exists = 0 <= partition.partition < partitions.get(partition.topic, 0)
        if exists and holder is not None and holder in entitled.get(partition.topic, ()):
            held[holder].append(partition)
    return held
