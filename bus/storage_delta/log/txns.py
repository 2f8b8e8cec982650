"""The `txn` actions of the bus: what applications of its own say in them, and how far each idempotent producer is.

Every commit of the bus carries `bus/high_watermark` and `bus/leader_epoch`. A checkpoint drops `commitInfo` and, once
everything has been retired, has no file left to tell the next offset; `txn` actions survive both, and any Delta library
can ask for them. Two more are there once they are needed: `bus/compacted`, offsets below it may be missing, and
`bus/log_start`, offsets below it are gone for every reader of the log. A repair that had to give records up leaves
`bus/lost/<first offset>`: from there up to its version, no record is left. `bus/forgotten` is the largest id of a
producer that was idle for so long that checkpoints need not name it any more. `bus/<producer id>` has the producer's
epoch and last sequence. `bus/txn/<transactional id>` has the last transaction of that id that ended here, its number
doubled, and one more if its rows are in the table; a version of -1 takes it back, and checkpoints need not name it any
more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from bus.ports import AppliedTransaction, ProducerProgress
from bus.records.json_text import parse_json
from bus.storage_delta.files.live_file import check_int64

HIGH_WATERMARK_APP = "bus/high_watermark"
LEADER_EPOCH_APP = "bus/leader_epoch"
COMPACTED_APP = "bus/compacted"
LOG_START_APP = "bus/log_start"
FORGOTTEN_APP = "bus/forgotten"
TRANSACTION_APPS = "bus/txn/"
TRANSACTIONS_NOTE = "bus.transactions"  # key in the footer of a data file: the proofs of its version
_TAKEN_BACK = -1
_LOST_APP = re.compile(r"bus/lost/(\d+)")
_PRODUCER_APP = re.compile(r"bus/(\d+)")


@dataclass(frozen=True, slots=True)
class Txn:
    """How far an application has come, by its own count (Delta protocol, "Transaction Identifiers")."""

    version: int
    updated_ms: int = 0  # 0 if its writer did not say


def encode_txn(app_id: str, version: int, now_ms: int) -> str:
    """A line of a version file."""
    return f'{{"txn":{{"appId":"{app_id}","version":{version},"lastUpdated":{now_ms}}}}}\n'


def encode_progress(progress: ProducerProgress, now_ms: int) -> str:
    assert progress.last_sequence >= 0, f"producer {progress.producer_id} has sequence {progress.last_sequence}"
    done = progress.producer_epoch << 32 | progress.last_sequence
    return encode_txn(producer_app(progress.producer_id), done, now_ms)


def encode_applied(transaction: AppliedTransaction, now_ms: int) -> str:
    return encode_txn(transaction_app(transaction.transactional_id), transaction.applied_version, now_ms)


def encode_aborted(transaction: AppliedTransaction, now_ms: int) -> str:
    return encode_txn(transaction_app(transaction.transactional_id), transaction.aborted_version, now_ms)


def encode_taken_back(transactional_id: str, now_ms: int) -> str:
    return encode_txn(transaction_app(transactional_id), _TAKEN_BACK, now_ms)


def decode_txn(txn: Mapping[str, Any]) -> Txn:
    """Raises `LookupError`, `TypeError`, `ValueError`."""
    version, updated_ms = int(txn["version"]), int(txn.get("lastUpdated") or 0)
    check_int64(version if updated_ms < 1 << 63 else updated_ms)
    return Txn(version, updated_ms)


def decode_producers(txns: Mapping[str, Txn]) -> dict[int, ProducerProgress]:
    """The idempotent producers among the `txn` actions."""
    producers = {}
    for app_id, txn in txns.items():
        if match := _PRODUCER_APP.fullmatch(app_id):
            producer_id = int(match[1])
            producers[producer_id] = ProducerProgress(
                producer_id, txn.version >> 32, txn.version & 0xFFFFFFFF, txn.updated_ms
            )
    return producers


def decode_transactions(txns: Mapping[str, Txn]) -> dict[str, int]:
    """Transactional id -> the version of its `txn` action."""
    return {transactional_id: txn.version for transactional_id, txn in transaction_txns(txns)}


def transaction_txns(txns: Mapping[str, Txn]) -> Iterator[tuple[str, Txn]]:
    """The transactional ids of which a transaction has ended here, each with its `txn`."""
    for app_id, txn in txns.items():
        if app_id.startswith(TRANSACTION_APPS) and txn.version >= 0:
            yield unquote(app_id.removeprefix(TRANSACTION_APPS)), txn


def encode_proofs(transactions: Sequence[AppliedTransaction]) -> dict[str, str]:
    """The notes of a data file that has the rows of `transactions`."""
    if not transactions:
        return {}
    proofs = {transaction_app(each.transactional_id): each.applied_version for each in transactions}
    return {TRANSACTIONS_NOTE: json.dumps(proofs)}


def decode_proofs(notes: Mapping[bytes, bytes]) -> dict[str, int]:
    """The `appId` of each proof -> its version. Notes that are not ours prove nothing."""
    try:
        recorded = parse_json(notes.get(TRANSACTIONS_NOTE.encode(), b"{}"))
    except ValueError:
        return {}
    return {
        app_id: version
        for app_id, version in (recorded.items() if isinstance(recorded, dict) else ())
        if app_id.startswith(TRANSACTION_APPS) and type(version) is int and 0 <= version < 1 << 63
    }


def transaction_app(transactional_id: str) -> str:
    """The `appId` of a transactional id's `txn`: ASCII without a character that JSON escapes."""
    return TRANSACTION_APPS + quote(transactional_id, safe="")


def is_taken_back(app_id: str, txn: Txn) -> bool:
    """True if it belongs to a transactional id that has expired."""
    return app_id.startswith(TRANSACTION_APPS) and txn.version == _TAKEN_BACK


def forgotten_id_max_of(txns: Mapping[str, Txn]) -> int:
    """-1 if no producer was ever forgotten."""
    return txns[FORGOTTEN_APP].version if FORGOTTEN_APP in txns else -1


def is_forgotten(app_id: str, txns: Mapping[str, Txn]) -> bool:
    """True if `app_id` belongs to a producer that a table with `txns` no longer has to name. A producer that the table
    does not name may be an older one that has returned."""
    match = _PRODUCER_APP.fullmatch(app_id)
    return match is not None and int(match[1]) <= forgotten_id_max_of(txns)


def producer_app(producer_id: int) -> str:
    """The `appId` of an idempotent producer's `txn`."""
    return f"bus/{producer_id}"


def lost_app(first_offset: int) -> str:
    """The `appId` that says from where records were given up."""
    return f"bus/lost/{first_offset}"


def is_lost_app(app_id: str) -> bool:
    return _LOST_APP.fullmatch(app_id) is not None


def decode_lost_ranges(txns: Mapping[str, Txn]) -> list[tuple[int, int]]:
    """Offsets whose records were given up, each as (first, one past the last), in order."""
    found = ((_LOST_APP.fullmatch(app_id), txn.version) for app_id, txn in txns.items())
    return sorted((int(match[1]), following) for match, following in found if match)
