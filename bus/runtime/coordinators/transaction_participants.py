"""The partitions and groups of this broker as the coordinators of transactions ask them.

Each is asked by itself, all at once, so a busy one holds up no other. A step that has begun runs to its end even if the
coordinator that asked goes away; only a vote, which changes nothing that lasts, is cancelled with its call. The
coordinator asks again, and every step is safe to repeat.
"""

from __future__ import annotations

from bus.consumer_groups import requests as groups
from bus.errors import ErrorCode, Refused
from bus.ports import AppliedTransaction, StagingKey
from bus.runtime.coordinators.groups import GroupCoordinator
from bus.runtime.partitions.partition_host import PartitionHost
from bus.runtime.partitions.partition_queue import TransactionWritten
from bus.runtime.tasks import TaskScope, together
from bus.runtime.transaction_calls import StepAnswer, StepKind, Stepped, StepRequest
from bus.transactions.state import TransactionGroup, TransactionPartition

NOWHERE = TransactionWritten(-1, -1)


class TransactionParticipants:
    def __init__(self, host: PartitionHost, groups: GroupCoordinator, tasks: TaskScope) -> None:
        self._host = host
        self._groups = groups
        self._tasks = tasks

    async def step(self, kind: StepKind, request: StepRequest) -> StepAnswer:
        """An answer for each; the refusals of those that are led elsewhere say so."""
        if kind is StepKind.VOTE:
            return await self._step(kind, request)
        return await self._tasks.finish(self._step(kind, request), f"transaction/{kind.value}")

    async def _step(self, kind: StepKind, request: StepRequest) -> StepAnswer:
        partitions = [self._step_partition(kind, request, partition, last) for partition, last in request.partitions]
        groups = [self._step_group(kind, request, group) for group in request.groups]
        answers = await together([*partitions, *groups])
        return StepAnswer(answers[: len(partitions)], answers[len(partitions) :])

    async def _step_partition(
        self, kind: StepKind, request: StepRequest, name: TransactionPartition, last_sequence: int
    ) -> Stepped | Refused:
        partition = self._host.find(name.name, name.topic_id)
        if isinstance(partition, Refused):
            return partition
        key = StagingKey(request.coordinator_partition, request.producer_id, request.producer_epoch)
        match kind:
            case StepKind.VOTE:
                taken_number = partition.transactions.find_taken_number(_transaction_of(request))
                if taken_number >= 0 and last_sequence < 0 and not request.heeds_marks:
                    # It would commit nothing, since it takes for the whole transaction what is voted for.
                    message = f"{name}: transaction {taken_number} is of an earlier life of the id"
                    return Refused(ErrorCode.TRANSACTION_ABORTABLE, message)
                if taken_number >= 0:
                    return Stepped(number=taken_number)
                voted = await partition.transactions.vote(key, last_sequence)
                return voted if isinstance(voted, Refused) else Stepped(last_sequence=voted)
            case StepKind.COMMIT:
                decided = await partition.transactions.commit(key, _transaction_of(request), last_sequence)
                if isinstance(decided, Refused):
                    return decided
                rows = decided.rows or NOWHERE
                return Stepped(decided.last_sequence, rows.version, rows.base_offset, number=decided.taken_number)
            case StepKind.APPLY:
                written = await partition.transactions.apply(key, _transaction_of(request), last_sequence)
                if isinstance(written, Refused):
                    return written
                return Stepped(version=written.version, base_offset=written.base_offset)
            case StepKind.DROP:
                return await partition.transactions.drop(key) or Stepped()
            case StepKind.RESOLVE:
                resolved = await partition.transactions.resolve(_transaction_of(request))
                if isinstance(resolved, Refused):
                    return resolved
                rows = resolved.rows or NOWHERE
                return Stepped(number=resolved.last_number, version=rows.version, base_offset=rows.base_offset)

    async def _step_group(self, kind: StepKind, request: StepRequest, group: TransactionGroup) -> Stepped | Refused:
        key = groups.TransactionKey(request.producer_id, request.producer_epoch)
        command: groups.VoteOffsets | groups.ApplyOffsets | groups.DropOffsets
        match kind:
            case StepKind.VOTE:
                command = groups.VoteOffsets(group.group_id, key)
            case StepKind.APPLY:
                command = groups.ApplyOffsets(group.group_id, key)
            case StepKind.DROP:
                command = groups.DropOffsets(group.group_id, key)
            case StepKind.COMMIT | StepKind.RESOLVE:
                return Refused(ErrorCode.INVALID_REQUEST, f"expected partitions to {kind.value}, found {group}")
        answer = await self._groups.submit(command)
        match answer:
            case groups.OffsetsVoted(has_pending):
                return Stepped(has_pending=has_pending)
            case groups.TxnOffsetsSettled():
                return Stepped()
            case Refused():
                return answer
            case _:
                return Refused(ErrorCode.UNKNOWN_SERVER_ERROR, f"group {group.group_id}: found the answer {answer}")


def _transaction_of(request: StepRequest) -> AppliedTransaction:
    return AppliedTransaction(request.transactional_id, request.number, request.producer_id, request.producer_epoch)
