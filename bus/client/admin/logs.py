"""The administrator's calls for the life of the log: records deleted, maintenance by hand, files swapped by a job.

Guards one promise: each partition is asked of its leader. Deleting is repeated while that may help, since a second time
changes nothing; a swap is sent once, for its second answer would say that the files are gone. Maintenance takes as long
as it takes: it has no deadline, and closing its iterator ends it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import chain
from typing import Any

from bus.client.admin.broker_calls import CallTimes
from bus.client.admin.failures import raise_failures
from bus.client.connection.cluster import Cluster, error_of
from bus.client.connection.leader_calls import in_portions, leader_of
from bus.client.connection.retrying import monotonic_ms
from bus.client.values import DeletedRecords, MaintainedLog
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition

ACTIONS = {
    "roll": pb.MAINTENANCE_ACTION_ROLL,
    "compact": pb.MAINTENANCE_ACTION_COMPACT,
    "clean": pb.MAINTENANCE_ACTION_CLEAN,
}
Results = Generator[MaintainedLog, None, None]
SWAP_KINDS = {"same_rows": pb.SWAP_KIND_SAME_ROWS, "last_of_keys": pb.SWAP_KIND_LAST_OF_KEYS}


class LogAdmin:
    """Every method blocks until the leaders' answers and raises `BusError`."""

    def __init__(self, cluster: Cluster, times: CallTimes) -> None:
        self._cluster = cluster
        self._retries = times.retries
        self._timeout_ms = times.default_api_timeout_ms

    # ------------------------------------------------------------ deleting records

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, DeletedRecords]:
        deadline_ms = monotonic_ms() + self._timeout_ms
        answers: dict[TopicPartition, DeletedRecords | BusError] = {}

        def ask() -> None:
            waiting = [one for one in offsets if one not in answers or self._failure_that_may_pass(answers[one])]
            self._ask_to_delete({one: offsets[one] for one in waiting}, answers, deadline_ms)
            failures = {one: error for one in waiting if (error := self._failure_that_may_pass(answers[one]))}
            self._cluster.forget({one.topic for one in failures})
            for error in failures.values():
                raise error

        with suppress(BusError):  # each is among the answers
            self._cluster.retry(ask, deadline_ms=deadline_ms, retries=self._retries)
        raise_failures(
            [
                (str(one), int(answer.code), answer.message) if isinstance(answer, BusError) else (str(one), 0, "")
                for one, answer in answers.items()
            ]
        )
        return {one: answer for one in offsets if isinstance(answer := answers[one], DeletedRecords)}

    def _failure_that_may_pass(self, answer: DeletedRecords | BusError) -> BusError | None:
        return answer if isinstance(answer, BusError) and self._cluster.may_retry(answer) else None

    def _ask_to_delete(
        self,
        offsets: Mapping[TopicPartition, int],
        answers: dict[TopicPartition, DeletedRecords | BusError],
        deadline_ms: float,
    ) -> None:
        """An answer for each of `offsets`, one call a leader."""
        by_address: dict[str, list[TopicPartition]] = {}
        for one in offsets:
            try:
                by_address.setdefault(leader_of(self._cluster, one, deadline_ms=deadline_ms), []).append(one)
            except BusError as error:
                answers[one] = error
        for address, partitions in in_portions(by_address):
            request = pb.DeleteRecordsRequest(
                partitions=[
                    pb.DeleteRecordsPartition(topic=one.topic, partition=one.partition, offset=offsets[one])
                    for one in partitions
                ]
            )
            try:
                response = self._cluster.call("DeleteRecords", request, address=address, deadline_ms=deadline_ms)
            except BusError as error:
                answers.update(dict.fromkeys(partitions, error))
                continue
            answers.update({TopicPartition(item.topic, item.partition): _deleted(item) for item in response.partitions})

    # ------------------------------------------------------------ maintenance by hand

    def maintain(self, topic: str, action: str, partitions: Collection[int] | None) -> Results:
        """Begins at once; the iterator tells."""
        if not isinstance(action, str) or action not in ACTIONS:
            raise BusError(ErrorCode.INVALID_REQUEST, f"expected an action {_one_of(ACTIONS)}, found {action!r}")
        deadline_ms = monotonic_ms() + self._timeout_ms
        info = self._cluster.wait_topic(topic, deadline_ms=deadline_ms)
        wanted = range(len(info.partitions)) if partitions is None else sorted(set(partitions))
        by_address: dict[str, list[int]] = {}
        for number in wanted:
            address = leader_of(self._cluster, TopicPartition(topic, number), deadline_ms=deadline_ms)
            by_address.setdefault(address, []).append(number)
        streams = [
            self._cluster.open_answers(
                "MaintainLog",
                pb.MaintainLogRequest(action=ACTIONS[action], topic=topic, partitions=numbers),
                address=address,
            )
            for address, numbers in by_address.items()
        ]
        return _results(topic, streams)

    # ------------------------------------------------------------ files of a job

    def swap_files(
        self, partition: TopicPartition, removes: Sequence[str], adds: Sequence[str], kind: str, *, timeout_ms: float
    ) -> int:
        """Returns the version that has the new files."""
        if not isinstance(kind, str) or kind not in SWAP_KINDS:
            raise BusError(ErrorCode.INVALID_REQUEST, f"expected a kind {_one_of(SWAP_KINDS)}, found {kind!r}")
        request = pb.SwapFilesRequest(
            topic=partition.topic,
            partition=partition.partition,
            kind=SWAP_KINDS[kind],
            removes=removes,
            adds=adds,
        )
        address = leader_of(self._cluster, partition, deadline_ms=monotonic_ms() + self._timeout_ms)
        response = self._cluster.call("SwapFiles", request, address=address, timeout_ms=timeout_ms)
        if response.error_code:
            self._cluster.forget([partition.topic])
            raise error_of(response.error_code, response.error_message)
        return int(response.version)


def _deleted(item: pb.DeleteRecordsPartitionResponse) -> DeletedRecords | BusError:
    if item.error_code:
        return error_of(item.error_code, item.error_message)
    return DeletedRecords(item.low_watermark, item.version)


def _results(topic: str, streams: Sequence[Generator[Any, None, None]]) -> Results:
    answers: list[tuple[str, int, str]] = []
    with ExitStack() as stack:
        for stream in streams:
            stack.enter_context(closing(stream))
        for answer in chain.from_iterable(streams):
            name = str(TopicPartition(topic, answer.partition))
            answers.append((name, answer.error_code, answer.error_message))
            if not answer.error_code:
                yield _maintained(answer)
    raise_failures(answers)


def _maintained(answer: pb.MaintainLogResponse) -> MaintainedLog:
    return MaintainedLog(
        partition=answer.partition,
        version=answer.version,
        files_before=answer.files_before,
        files_after=answer.files_after,
        bytes_before=answer.bytes_before,
        bytes_after=answer.bytes_after,
        rewritten_bytes=answer.rewritten_bytes,
        log_start=answer.log_start,
        dropped_versions=answer.dropped_versions,
        deleted_files=answer.deleted_files,
        deleted_bytes=answer.deleted_bytes,
    )


def _one_of(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"
