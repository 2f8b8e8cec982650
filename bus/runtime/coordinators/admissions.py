"""Commits of offsets that are being admitted to their transaction: asked for, and not yet in the queue of their group.

Guards one promise: what comes after the end of a transaction is not written into it. The coordinator of the transaction
answers "admitted", and then may end it before the offsets are in the group's log; they would be pending for ever, or
replace those that were voted on. So an end that passes here is remembered by the admissions that wait, and by nothing
else. An end that passes at another broker is not seen here: a commit that is admitted while the group's partition is
led elsewhere is refused when it comes back (`GroupCoordinator.commit_in_transaction`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from bus.consumer_groups.requests import TransactionKey


@dataclass(slots=True, eq=False)
class Admission:
    has_ended: bool = False  # the transaction's vote or its end came by


class Admissions:
    def __init__(self) -> None:
        self._waiting: dict[tuple[str, TransactionKey], set[Admission]] = {}

    @contextlib.contextmanager
    def begin(self, group_id: str, transaction: TransactionKey) -> Iterator[Admission]:
        """For as long as it is being admitted."""
        admission, key = Admission(), (group_id, transaction)
        others = self._waiting.setdefault(key, set())
        others.add(admission)
        try:
            yield admission
        finally:
            others.discard(admission)
            if not others and self._waiting.get(key) is others:
                del self._waiting[key]

    def end(self, group_id: str, transaction: TransactionKey) -> None:
        for admission in self._waiting.get((group_id, transaction), ()):
            admission.has_ended = True
