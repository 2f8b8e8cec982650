"""A producer's transactions: which call may come when, and what each error means. No thread, clock or I/O.

Theory of operation. The producer's calls (`begin_...`) are checked against the state, and what the brokers say
(`on_...`) moves it on. An error has one of three meanings, by the call that met it (`judge`, Kafka's TransactionManager
row by row): the call is repeated; the transaction can only be aborted; or the producer can only be closed. From the
moment in which the end of a transaction is asked for until it is answered, its outcome is open: the same call may come
again, as often as it takes, and no other. Guards one promise: a transaction that a coordinator was asked to commit is
not asked to be aborted, unless the coordinator has said that it is not committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition


class TransactionState(Enum):
    UNINITIALIZED = "uninitialized"  # no identity: nothing may be sent
    INITIALIZING = "initializing"
    READY = "ready"  # an identity, and no transaction
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"  # nothing more may be sent; the outcome is open
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"  # the transaction can only be aborted
    FATAL_ERROR = "fatal error"  # the producer can only be closed


_S = TransactionState

# The message for a call in a wrong state: the state that was found, and the call that it allows.
_FOUND: Mapping[TransactionState, str] = {
    _S.UNINITIALIZED: "no init_transactions() yet: call it first, once",
    _S.INITIALIZING: "init_transactions() under way",
    _S.READY: "a producer between transactions: begin_transaction(), or `with producer.transaction()`, opens the next",
    _S.IN_TRANSACTION: "an open one: commit_transaction() or abort_transaction() ends it",
    _S.COMMITTING: "a commit, and its outcome is open: call commit_transaction() again",
    _S.ABORTING: "an abort, and its outcome is open: call abort_transaction() again",
}

# State -> the states it may follow, each with what brings it about.
TRANSITIONS: Mapping[TransactionState, Mapping[TransactionState, str]] = {
    _S.UNINITIALIZED: {_S.INITIALIZING: "the transactional id cannot be initialised for now"},
    _S.INITIALIZING: {_S.UNINITIALIZED: "init_transactions"},
    _S.READY: {
        _S.INITIALIZING: "the coordinator has given an identity",
        _S.COMMITTING: "committed everywhere, or there was nothing to commit",
        _S.ABORTING: "aborted, or there was nothing to abort",
    },
    _S.IN_TRANSACTION: {_S.READY: "begin_transaction"},
    _S.COMMITTING: {_S.IN_TRANSACTION: "commit_transaction"},
    _S.ABORTING: {
        _S.IN_TRANSACTION: "abort_transaction",
        _S.ABORTABLE_ERROR: "abort_transaction",
        _S.COMMITTING: "abort_transaction, while no broker was asked to commit",
    },
    _S.ABORTABLE_ERROR: {
        _S.IN_TRANSACTION: "a record or an offset was not taken",
        _S.COMMITTING: "a record was not taken, or the coordinator has aborted",
        _S.ABORTING: "the coordinator says so",
    },
    _S.FATAL_ERROR: dict.fromkeys(_S, "another instance has the transactional id, or the coordinator does not go on"),
}


class Call(Enum):
    INITIALIZE = "InitProducerId"
    PRODUCE = "Produce"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    COMMIT = "EndTxn (commit)"
    ABORT = "EndTxn (abort)"


class Verdict(Enum):
    RETRY = "the call is repeated"
    ABORTABLE = "the transaction can only be aborted"
    FATAL = "the producer can only be closed"


_MEMBERSHIP = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
)
# The calls for which a code is abortable; for all others it is fatal.
_ABORTABLE: Mapping[ErrorCode, frozenset[Call]] = {
    ErrorCode.PRODUCER_FENCED: frozenset(),
    ErrorCode.INVALID_PRODUCER_EPOCH: frozenset({Call.PRODUCE}),  # perhaps its time-out aborted it (KIP-588)
    ErrorCode.INVALID_TXN_STATE: frozenset({Call.PRODUCE}),
    # A commit that meets these can be given up: the coordinator has forgotten the id.
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: frozenset({Call.PRODUCE, Call.COMMIT}),
    ErrorCode.UNKNOWN_PRODUCER_ID: frozenset({Call.PRODUCE, Call.COMMIT}),
    ErrorCode.TRANSACTION_ABORTABLE: frozenset(Call),
    **dict.fromkeys(_MEMBERSHIP, frozenset({Call.COMMIT_OFFSETS})),
}


def judge(call: Call, error: BusError) -> Verdict:
    """Tell what `error`, the answer to `call`, means for the transaction. The sender repeats Produce itself, so an
    error of Produce is final."""
    abortable_in = _ABORTABLE.get(error.code)
    if abortable_in is not None:
        return Verdict.ABORTABLE if call in abortable_in else Verdict.FATAL
    if call is Call.PRODUCE:
        return Verdict.ABORTABLE
    if error.retriable:
        return Verdict.RETRY
    return Verdict.ABORTABLE if call is Call.COMMIT_OFFSETS else Verdict.FATAL


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The request to the coordinator for the end of a transaction; the same until it is answered. `last_sequences`: of
    each partition the last sequence that was acknowledged."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    last_sequences: Mapping[TopicPartition, int] = field(default_factory=dict)


class TransactionManager:
    """`begin_...` raises `BusError`: INVALID_TXN_STATE if the call has no place here, else the error for which the
    transaction, or the producer, is to be ended."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = _S.UNINITIALIZED
        self.identity: tuple[int, int] | None = None  # producer id and epoch, of this transaction alone
        self.error: BusError | None = None  # set in one of the two error states
        self._last_sequences: dict[TopicPartition, int] = {}  # acknowledged
        self._offset_commits: dict[str, int] = {}  # group -> the number of commits
        self._is_begun = False  # a broker may know of this transaction
        self._is_commit_requested = False  # the coordinator was asked for it

    # ------------------------------------------------------------ what the user calls

    def begin_initializing(self) -> None:
        self._raise_error()
        if self.state is not _S.INITIALIZING:
            self._require(_S.UNINITIALIZED, "init_transactions() to be called once")
            self._move(_S.INITIALIZING)

    def begin_transaction(self) -> None:
        self._raise_error()
        self._require(_S.READY, "begin_transaction() between transactions")
        self._move(_S.IN_TRANSACTION)
        self._last_sequences, self._offset_commits = {}, {}
        self._is_begun = self._is_commit_requested = False

    @property
    def may_send(self) -> bool:
        return self.state is _S.IN_TRANSACTION

    @property
    def may_abort(self) -> bool:
        is_open = self.state is _S.COMMITTING and self._is_commit_requested
        return (not is_open and self.state in TRANSITIONS[_S.ABORTING]) or self.state is _S.ABORTING

    def check_may_send(self, call: str = "send") -> None:
        """Asked before `call` takes in a record or an offset."""
        self._raise_error()
        self._require(_S.IN_TRANSACTION, f"{call}() in an open transaction")

    def check_block_is_open(self) -> None:
        """Asked at the end of a `with producer.transaction()` block that no error has left."""
        if self.state is _S.READY:
            raise BusError(
                ErrorCode.INVALID_TXN_STATE,
                f"{self.transactional_id}: expected an open transaction at the end of its `with` block, found one that "
                "was committed or aborted inside the block: leave commit_transaction() to the block, and to abort, "
                "leave the block with an exception",
            )

    def begin_offsets(self, group_id: str) -> int:
        """The number of this commit of offsets, among those of the group in the transaction."""
        self._raise_error()
        self._require(_S.IN_TRANSACTION, "send_offsets_to_transaction() in an open transaction")
        number = self._offset_commits.get(group_id, 0)
        self._offset_commits[group_id] = number + 1
        self._is_begun = True
        return number

    def begin_commit(self) -> None:
        """Nothing is sent from now on; what was sent has to be settled before `end`."""
        self._raise_error()
        if self.state is not _S.COMMITTING:
            self._require(_S.IN_TRANSACTION, "commit_transaction() in an open transaction")
            self._move(_S.COMMITTING)

    def begin_abort(self) -> None:
        """Nothing of this transaction is sent from now on."""
        if self.state is _S.FATAL_ERROR:
            self._raise_error()
        if self.state is _S.COMMITTING and self._is_commit_requested:
            raise self._misplaced("abort_transaction() before a commit was asked for")
        if self.state not in (_S.ABORTING, _S.ABORTABLE_ERROR, _S.COMMITTING):
            self._require(_S.IN_TRANSACTION, "abort_transaction() in an open transaction")
        if self.state is not _S.ABORTING:
            self._move(_S.ABORTING)
            self.error = None

    def end(self) -> TransactionEnd | None:
        """Return the request for the coordinator after `begin_commit` or `begin_abort`. None: no broker knows of the
        transaction, and it has ended. Raises the error of a record that failed before it could be committed."""
        if self.state is not _S.ABORTING:
            self._raise_error()
        assert self.identity is not None, "a transaction has an identity"
        if not self._is_begun:
            self._move(_S.READY)
            return None
        is_commit = self.state is _S.COMMITTING
        self._is_commit_requested = is_commit
        return TransactionEnd(*self.identity, is_commit, dict(self._last_sequences) if is_commit else {})

    # ------------------------------------------------------------ what happens

    def on_initialized(self, producer_id: int, producer_epoch: int) -> None:
        self._move(_S.READY)
        self.identity = producer_id, producer_epoch

    def on_sending(self) -> None:
        """A request with records of the transaction leaves."""
        self._is_begun = True

    def on_acknowledged(self, partition: TopicPartition, last_sequence: int) -> None:
        """Note an acknowledgement; they come in the order of their sequences."""
        if self.state in (_S.IN_TRANSACTION, _S.COMMITTING):
            self._last_sequences[partition] = last_sequence

    def on_ended(self, producer_id: int, producer_epoch: int) -> None:
        """Note the end of the transaction, and the identity for the next one."""
        self._move(_S.READY)
        self.identity = producer_id, producer_epoch

    def on_failed(self, call: Call, error: BusError) -> Verdict:
        """Moves to the state of the verdict. A later error does not take the place of the first one."""
        verdict = judge(call, error)
        if verdict is Verdict.FATAL:
            self._fail(_S.FATAL_ERROR, error)
        elif verdict is Verdict.ABORTABLE:
            self._on_abortable(call, error)
        return verdict

    def on_timed_out(self, call: Call, error: BusError) -> None:
        """The user's time for a call is up, and it is not known whether it had an effect. An end stays open; of offsets
        it does not matter, since they can be aborted; and initialising begins anew."""
        if call is Call.COMMIT_OFFSETS:
            self._on_abortable(call, error)
        elif call is Call.INITIALIZE:
            self._move(_S.UNINITIALIZED)

    def _on_abortable(self, call: Call, error: BusError) -> None:
        if call is Call.INITIALIZE:
            self._move(_S.UNINITIALIZED)
        elif self.state in TRANSITIONS[_S.ABORTABLE_ERROR] and not (
            call in (Call.PRODUCE, Call.COMMIT_OFFSETS) and self._is_ending
        ):
            self._fail(_S.ABORTABLE_ERROR, error)

    @property
    def _is_ending(self) -> bool:
        """True if the outcome of single records no longer matters."""
        return self.state is _S.ABORTING or (self.state is _S.COMMITTING and self._is_commit_requested)

    # ------------------------------------------------------------ the state

    def _fail(self, state: TransactionState, error: BusError) -> None:
        if self.state is not _S.FATAL_ERROR:
            self._move(state)
            self.error = error

    def _move(self, state: TransactionState) -> None:
        assert self.state in TRANSITIONS[state], f"{self.transactional_id}: {state.value} after {self.state.value}"
        self.state = state

    def _require(self, state: TransactionState, expected: str) -> None:
        if self.state is not state:
            raise self._misplaced(expected)

    def _misplaced(self, expected: str) -> BusError:
        return BusError(
            ErrorCode.INVALID_TXN_STATE, f"{self.transactional_id}: expected {expected}, found {_FOUND[self.state]}"
        )

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.with_way_on(self.error) from self.error

    def with_way_on(self, error: BusError) -> BusError:
        """`error`, and what the state that it has led to leaves to be done. It is retriable only if the same call may
        come again."""
        if self.state is _S.ABORTABLE_ERROR:
            way_on = "abort_transaction() is the only way on; a `with producer.transaction()` block calls it by itself"
        elif self.state is not _S.FATAL_ERROR:
            return error
        elif error.code is ErrorCode.PRODUCER_FENCED:
            way_on = "another instance has the transactional id, or an operator fenced this one: close this producer"
        else:
            way_on = "close this producer: it can do nothing else"
        # An error that may pass for a single call does not pass for the transaction: the call must not be repeated.
        code = ErrorCode.TRANSACTION_ABORTABLE if error.retriable else error.code
        return BusError(code, f"{error.message}; {way_on}")
