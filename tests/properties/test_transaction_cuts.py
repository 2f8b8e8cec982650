"""A bank whose transfers touch different partitions: at every cut the sum of all accounts is what it was."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from bus.model import TopicPartition
from bus.tables.transaction_cuts import ConsistentCut, decide_cut
from bus.transactions.state import ProducerIdentity

ACCOUNTS = [TopicPartition("accounts", number) for number in range(4)]


@dataclass(frozen=True)
class Transfer:
    identity: ProducerIdentity
    amounts: Mapping[TopicPartition, int]  # their sum is 0


@dataclass(frozen=True)
class Row:
    """`balance`: of the account behind the transfer, where no other one was under way."""

    identity: ProducerIdentity
    version: int
    time_ms: int  # by the clock of the partition's leader
    amount: int
    balance: int


class Bank:
    """Transfers of several clients, applied in each partition at a time of its own."""

    def __init__(self, seed: int, *, is_serial: bool, skew_ms: int) -> None:
        chance = random.Random(seed)
        self.transfers: list[Transfer] = []
        self.log: dict[TopicPartition, list[Row]] = {each: [] for each in ACCOUNTS}
        self.completed_ms: dict[ProducerIdentity, int] = {}
        self.unfinished: set[ProducerIdentity] = set()
        skew = {each: chance.randrange(-skew_ms, skew_ms + 1) for each in (*ACCOUNTS, None)}
        waiting: list[list[tuple[Transfer, TopicPartition]]] = []  # of each client what is decided and not applied
        now_ms, clients = 1_000_000, 1 if is_serial else 4
        waiting += [[] for _ in range(clients)]
        for step in range(chance.randrange(5, 60)):
            now_ms += chance.randrange(1, 50)
            client = chance.randrange(clients)
            if not waiting[client]:
                waiting[client] = self._new_transfer(chance, client, step)
            while waiting[client] and (is_serial or chance.randrange(3)):
                now_ms += chance.randrange(0, 5)
                transfer, partition = waiting[client].pop(chance.randrange(len(waiting[client])))
                self._apply(transfer, partition, now_ms + skew[partition])
                if not waiting[client]:
                    self.completed_ms[transfer.identity] = now_ms + skew[None]
        self.unfinished = {some[0][0].identity for some in waiting if some}

    def _new_transfer(self, chance: random.Random, client: int, step: int) -> list[tuple[Transfer, TopicPartition]]:
        touched = chance.sample(ACCOUNTS, chance.randrange(1, len(ACCOUNTS) + 1))
        amounts = {each: chance.randrange(-9, 10) for each in touched[1:]}
        transfer = Transfer(ProducerIdentity(client, step), {touched[0]: -sum(amounts.values()), **amounts})
        self.transfers.append(transfer)
        return [(transfer, each) for each in transfer.amounts]

    def _apply(self, transfer: Transfer, partition: TopicPartition, time_ms: int) -> None:
        rows, amount = self.log[partition], transfer.amounts[partition]
        before = rows[-1].balance if rows else 0
        rows.append(Row(transfer.identity, len(rows) + 1, time_ms, amount, before + amount))

    @property
    def places(self) -> dict[ProducerIdentity, dict[TopicPartition, int]]:
        found: dict[ProducerIdentity, dict[TopicPartition, int]] = {}
        for partition, rows in self.log.items():
            for row in rows:
                found.setdefault(row.identity, {})[partition] = row.version
        return found

    def cut_at(self, identity: ProducerIdentity) -> ConsistentCut:
        places, completed_ms = self.places, self.completed_ms[identity]
        guess = {
            each: sum(row.time_ms <= completed_ms for row in rows)
            for each, rows in self.log.items()
            if each not in places[identity]
        }
        return decide_cut(places[identity], guess, {}, places, self.unfinished)

    def seen(self, cut: ConsistentCut) -> dict[TopicPartition, Sequence[Row]]:
        return {
            each: [
                row
                for row in rows
                if row.version <= cut.versions[each] and row.identity not in cut.hidden.get(each, ())
            ]
            for each, rows in self.log.items()
        }


seeds = st.integers(0, 2**32)
skews = st.sampled_from([0, 10, 1_000, 86_400_000])


@given(seeds, skews)
def test_sum_of_all_transfers_is_constant_at_every_cut(seed: int, skew_ms: int) -> None:
    bank = Bank(seed, is_serial=False, skew_ms=skew_ms)
    for identity in bank.completed_ms:
        cut = bank.cut_at(identity)
        seen = bank.seen(cut)
        assert sum(row.amount for rows in seen.values() for row in rows) == 0
        for partition, version in bank.places[identity].items():
            assert cut.versions[partition] == version, "nothing later, and nothing is taken back"
            assert identity not in cut.hidden.get(partition, ())


@given(seeds, skews)
def test_balances_are_those_of_one_moment_where_transfers_follow_each_other(seed: int, skew_ms: int) -> None:
    """The last row of an account counts, so what a later one stands on must be there too, and nothing is hidden."""
    bank = Bank(seed, is_serial=True, skew_ms=skew_ms)
    order = [transfer.identity for transfer in bank.transfers]
    for identity in bank.completed_ms:
        cut = bank.cut_at(identity)
        seen = bank.seen(cut)
        assert not cut.hidden
        assert sum(rows[-1].balance for rows in seen.values() if rows) == 0
        before = {
            each for each in order[: order.index(identity) + 1] if bank.places[each].keys() & bank.places[identity]
        }
        there = {row.identity for rows in seen.values() for row in rows}
        assert before <= there, "what its partitions had before is there"


@given(seeds)
def test_cut_without_skew_has_what_was_complete_before_and_nothing_that_began_later(seed: int) -> None:
    bank = Bank(seed, is_serial=True, skew_ms=0)
    order = [transfer.identity for transfer in bank.transfers]
    for position, identity in enumerate(order):
        if identity in bank.completed_ms:
            there = {row.identity for rows in bank.seen(bank.cut_at(identity)).values() for row in rows}
            assert there == set(order[: position + 1])


def test_transaction_that_is_still_being_applied_is_hidden_where_it_is_there_already() -> None:
    first, second = ACCOUNTS[:2]
    own, flying = ProducerIdentity(1, 0), ProducerIdentity(2, 0)
    places = {own: {first: 2}, flying: {first: 1}}
    cut = decide_cut({first: 2}, {second: 5}, {}, places, [flying])
    assert cut == ConsistentCut({first: 2, second: 5}, {first: frozenset({flying})})


def test_version_that_is_not_kept_is_not_gone_back_to() -> None:
    first, second = ACCOUNTS[:2]
    own, later = ProducerIdentity(1, 0), ProducerIdentity(2, 0)
    places = {own: {first: 2}, later: {first: 3, second: 7}}
    assert decide_cut({first: 2}, {second: 7}, {second: 6}, places, []).versions[second] == 6
    kept = decide_cut({first: 2}, {second: 7}, {second: 7}, places, [])
    assert kept == ConsistentCut({first: 2, second: 7}, {second: frozenset({later})})
