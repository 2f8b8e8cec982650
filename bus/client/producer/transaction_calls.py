"""Calls of a producer to coordinators about its transactions, in the user's thread.

Guards one promise: a call is repeated, always with the same content, while its error may pass and its time is not up;
and the machine (transaction_manager.py) learns of its end before the user does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.client.config.clients import ProducerConfig
from bus.client.connection import produce_requests as requests
from bus.client.connection.cluster import Cluster
from bus.client.connection.group_requests import commit_portions
from bus.client.connection.produce_requests import Coordinated, TransactionRequest
from bus.client.connection.retrying import UNKNOWN_PARTITION_MS_MAX, monotonic_ms
from bus.client.group.link import LOST_COORDINATOR
from bus.client.producer.engine import Engine
from bus.client.producer.transaction_manager import Call, TransactionEnd, Verdict, judge
from bus.client.values import CommittedRows, GroupMetadata, OffsetAndMetadata
from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition

# The user's next step when the time of a call is up.
_WAYS_ON: Mapping[Call, str] = {
    Call.INITIALIZE: "; call init_transactions() again",
    Call.COMMIT: "; the outcome is open until commit_transaction(), called again, answers",
    Call.ABORT: "; the outcome is open until abort_transaction(), called again, answers",
}


class TransactionCalls:
    def __init__(self, cluster: Cluster, config: ProducerConfig, engine: Engine) -> None:
        assert config.transactional_id is not None, "of a producer that has a transactional id only"
        self._cluster = cluster
        self._config = config
        self._engine = engine
        self._id = config.transactional_id
        self._addresses: dict[Coordinated, str] = {}

    def initialize(self) -> None:
        """Initialise transactions, within max.block.ms. Raises `BusError`."""
        request = requests.init_transactions(self._id, self._config.transaction_timeout_ms)
        answer = self._ask(Call.INITIALIZE, request)
        self._engine.on_initialized(answer.producer_id, answer.producer_epoch)

    def commit_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        """The same. Many offsets go in several requests, each with a number of its own."""
        for portion in commit_portions(offsets):
            with self._engine.lock:
                manager = self._engine.transactions
                assert manager is not None, "this producer has a transactional id"
                sequence, identity = manager.begin_offsets(group.group_id), manager.identity
                assert identity is not None, "a transaction has an identity"
            request = requests.commit_offsets(self._id, identity, group, portion, sequence=sequence)
            self._ask(Call.COMMIT_OFFSETS, request)

    def end(self, end: TransactionEnd, timeout: float | None = None) -> dict[TopicPartition, CommittedRows]:
        """The same, or for `timeout` seconds if that is less. After REQUEST_TIMED_OUT the outcome is open, and `end`
        may be asked for again."""
        identity = end.producer_id, end.producer_epoch
        request = requests.end_transaction(self._id, identity, end.last_sequences, is_commit=end.is_commit)
        answer = self._ask(Call.COMMIT if end.is_commit else Call.ABORT, request, timeout)
        self._engine.on_transaction_ended(answer.producer_id, answer.producer_epoch)
        return requests.decode_versions(answer)

    # ------------------------------------------------------------ asking

    def _ask(self, call: Call, request: TransactionRequest, timeout: float | None = None) -> Any:
        given_ms, began_ms = self._config.max_block_ms, monotonic_ms()
        deadline_ms = began_ms + (given_ms if timeout is None else min(given_ms, timeout * 1000))

        def may_retry(error: BusError) -> bool:
            return judge(call, error) is Verdict.RETRY and not _is_gone(call, error, monotonic_ms() - began_ms)

        try:
            return self._cluster.retry(
                lambda: self._ask_once(request, deadline_ms),
                deadline_ms=deadline_ms,
                may_retry=may_retry,
            )
        except BusError as error:
            is_gone = _is_gone(call, error, monotonic_ms() - began_ms)
            final = BusError(ErrorCode.TRANSACTION_ABORTABLE, error.message) if is_gone else error
            if self._engine.on_transaction_failed(call, final) is not Verdict.RETRY:
                raise self._with_way_on(final) from error
            way_on = _WAYS_ON.get(call, "")
            raise self._give_up(call, f"had no final answer in time (max.block.ms){way_on}: {error}") from error
        except BaseException:
            self._give_up(call, "was interrupted")
            raise

    def _with_way_on(self, error: BusError) -> BusError:
        with self._engine.lock:
            manager = self._engine.transactions
            assert manager is not None, "this producer has a transactional id"
            return manager.with_way_on(error)

    def _give_up(self, call: Call, why: str) -> BusError:
        error = BusError(ErrorCode.REQUEST_TIMED_OUT, f"{self._id}: {call.value} {why}")
        self._engine.on_transaction_timed_out(call, error)
        return error

    def _ask_once(self, request: TransactionRequest, deadline_ms: float) -> Any:
        address = self._address_of(request.coordinated, deadline_ms)
        try:
            answer = self._cluster.call(request.method, request.message, address=address, deadline_ms=deadline_ms)
            refused = requests.decode_transaction_error(request, answer)
            if refused is not None:
                raise refused
        except BusError as error:
            if error.code in LOST_COORDINATOR:
                self._addresses.pop(request.coordinated, None)
            raise
        return answer

    def _address_of(self, coordinated: Coordinated, deadline_ms: float) -> str:
        known = self._addresses.get(coordinated)
        if known is None:
            answer = self._cluster.call(
                "FindCoordinator", requests.find_coordinator(coordinated), deadline_ms=deadline_ms
            )
            known = self._addresses[coordinated] = requests.decode_coordinator(answer)
        return known


def _is_gone(call: Call, error: BusError, age_ms: float) -> bool:
    """Offsets of a partition that was deleted can never be committed, so the transaction can only be aborted."""
    is_unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return call is Call.COMMIT_OFFSETS and is_unknown and age_ms >= UNKNOWN_PARTITION_MS_MAX
