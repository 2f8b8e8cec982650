"""What a new coordinator knows: the transactional ids, out of the records of its partition."""

from __future__ import annotations

from bus.machine import SetTimer
from bus.transactions.requests import TimerKind, TransactionCommand, TransactionTimer
from bus.transactions.state import Transaction

# After a load, ids are first looked at for their expiry when so much time has passed.
_EXPIRY_AFTER_LOAD_MS = 3_600_000


def resume_timers(transaction: Transaction) -> tuple[SetTimer[TransactionCommand], ...]:
    """For an id that was just loaded: at once what is open is gone on with, later its expiry."""
    name = transaction.transactional_id
    expiry = SetTimer[TransactionCommand](TransactionTimer(TimerKind.EXPIRE, name), _EXPIRY_AFTER_LOAD_MS)
    if not transaction.state.is_open:
        return (expiry,)
    return SetTimer(TransactionTimer(TimerKind.DRIVE, name), 0), expiry
