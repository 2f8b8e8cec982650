"""Identities of idempotent producers: who one is, and where its records end.

What comes from a client is checked here, once for every call that carries an identity: an id or an epoch that was never
given, or that is out of range, gets no further.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from bus.broker_api.authorization import OF_CLUSTER, Access
from bus.broker_api.requests import Items, gather_answers
from bus.cluster_metadata.producer_ids import PRODUCER_EPOCH_MAX, ProducerIdentity
from bus.errors import ErrorCode, Refused
from bus.model import SEQUENCE_MODULUS, ProducerStamp, TopicPartition
from bus.partition_log.appends import ACKS_NONE
from bus.runtime.cluster import Cluster
from bus.runtime.loop_shares import LoopShares
from bus.runtime.partitions.partition_queue import ResumeResult
from bus.runtime.tasks import answered


@dataclass(frozen=True, slots=True)
class ClaimedStamp:
    """What a client says of the producer of a batch. `producer_id` None: it names none."""

    producer_id: int | None
    producer_epoch: int
    base_sequence: int


class ProducerApi:
    """`request_timeout_ms`: of what a partition is asked."""

    def __init__(self, cluster: Cluster, shares: LoopShares, *, request_timeout_ms: int) -> None:
        self._cluster = cluster
        self._shares = shares
        self._request_timeout_ms = request_timeout_ms

    async def init(
        self,
        access: Access,
        name: str | None,
        *,
        producer_id: int | None,
        producer_epoch: int,
        keeps_epoch: bool,
        instance_id: bytes = b"",
    ) -> ProducerIdentity | Refused:
        """`producer_id` and `producer_epoch`: what the caller has been so far. It needs a right to the name, as if it
        were a transactional id, or to write at all."""
        refused = await access.refusal_of_request([name] if name else [], [] if name else OF_CLUSTER)
        if refused is not None:
            return refused
        if producer_epoch and producer_id is None:
            return _invalid(f"expected a producer id with producer epoch {producer_epoch}, found none")
        return await self._cluster.producers.init(
            name,
            producer_id=producer_id,
            producer_epoch=None if producer_id is None else producer_epoch,
            keeps_epoch=keeps_epoch,
            instance_id=instance_id,
        )

    async def resume(
        self, access: Access, producer_id: int, producer_epoch: int, partitions: Items[tuple[TopicPartition, str]]
    ) -> list[ResumeResult]:
        """An answer for each of `partitions`, with the id of its topic (empty: not checked). All are asked at once, so
        that a busy one holds up no other."""

        async def resume(permitted: Sequence[tuple[TopicPartition, str]]) -> list[ResumeResult]:
            return await self._resume(producer_id, producer_epoch, permitted)

        return await access.answer_items(partitions, lambda one: one[0].topic, resume)

    async def _resume(
        self, producer_id: int, producer_epoch: int, partitions: Sequence[tuple[TopicPartition, str]]
    ) -> list[ResumeResult]:
        refused = check_identity(producer_id, producer_epoch) or self._cluster.producers.check(
            ProducerStamp(producer_id, producer_epoch, 0)
        )
        refused = refused or await self._cluster.prove_leadership()
        answers: list[asyncio.Future[ResumeResult]] = []
        share = self._shares.begin()

        def ask(name: TopicPartition, topic_id: str) -> asyncio.Future[ResumeResult]:
            partition = refused or self._cluster.host.find(name, topic_id)
            if isinstance(partition, Refused):
                return answered(partition)
            return partition.resume_producer(producer_id, producer_epoch)

        await share.extend(answers, itertools.starmap(ask, partitions))
        return await gather_answers(
            answers,
            timeout_ms=self._request_timeout_ms,
            otherwise=f"what was queued before was not committed within {self._request_timeout_ms} ms",
            share=share,
        )


def check_stamp(claimed: ClaimedStamp, acks: int) -> ProducerStamp | Refused | None:
    """None if the batch is of no idempotent producer."""
    if claimed.producer_id is None:
        if claimed.producer_epoch or claimed.base_sequence:
            return _invalid(
                f"expected a producer id with producer epoch {claimed.producer_epoch} and base sequence "
                f"{claimed.base_sequence}, found none"
            )
        return None
    refused = check_identity(claimed.producer_id, claimed.producer_epoch)
    if refused is not None:
        return refused
    if claimed.base_sequence < 0:
        return _invalid(f"expected a base sequence from 0 to {SEQUENCE_MODULUS - 1}, found {claimed.base_sequence}")
    if acks == ACKS_NONE:
        return _invalid(
            f"expected acks -1 or 1 of idempotent producer {claimed.producer_id}, found 0: it would learn of no gap"
        )
    return ProducerStamp(claimed.producer_id, claimed.producer_epoch, claimed.base_sequence)


def check_identity(producer_id: int, producer_epoch: int) -> Refused | None:
    if producer_id < 0:
        return _invalid(f"expected a producer id from 0 on, found {producer_id}")
    if not 0 <= producer_epoch <= PRODUCER_EPOCH_MAX:
        return _invalid(f"expected a producer epoch from 0 to {PRODUCER_EPOCH_MAX}, found {producer_epoch}")
    return None


def _invalid(message: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, message)
