"""The memory of logins, beyond what calls show."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bus.runtime import login_table as t
from bus.security.scram import ScramCredential
from bus.security.users import ScramCredentialSet, Users, apply_all

PROOF = t.Proof("User:alice", "alice", "PLAIN")


def test_logins_that_are_gone_or_extended_take_no_memory_until_they_would_have_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(t, "LOGINS_OF_A_NAME_MAX", 10)

    async def do() -> None:
        table, now_s = t.LoginTable(), asyncio.get_running_loop().time()
        for number in range(5_000):
            last = table.add(b"%d" % number, PROOF, now_s + 3600)
        assert last is not None
        for _ in range(5_000):
            table.extend(last, PROOF, now_s + 7200)
        assert len(table) == 10
        assert len(table._expiries) < 2_000

    asyncio.run(do())


class Names:
    """Logins of names, each with a key of its own."""

    def __init__(self) -> None:
        self.table = t.LoginTable()
        self.logins: dict[str, list[t.Login]] = {}

    def log_in(self, name: str, times: int = 1) -> bool:
        for _ in range(times):
            found = self.logins.setdefault(name, [])
            key = f"{name}-{len(found)}".encode()
            proof = t.Proof(f"User:{name}", name, "PLAIN")
            login = self.table.add(key, proof, asyncio.get_running_loop().time() + 3600)
            if login is None:
                return False
            found.append(login)
        return True

    def left(self) -> dict[str, int]:
        return {name: sum(not one.is_ended for one in logins) for name, logins in self.logins.items()}


def test_names_that_have_filled_the_table_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t, "LOGINS_MAX", 12)
    monkeypatch.setattr(t, "LOGINS_OF_A_NAME_MAX", 5)

    async def do() -> None:
        names = Names()
        for name in ("a", "b"):
            names.log_in(name, 10)
        names.log_in("c", 2)
        assert names.left() == {"a": 5, "b": 5, "c": 2}
        assert names.log_in("victim", 3)
        assert names.left() == {"a": 3, "b": 4, "c": 2, "victim": 3}
        assert names.log_in("a", 20)  # by its own
        assert names.left() == {"a": 3, "b": 4, "c": 2, "victim": 3}
        assert len(names.table) == 12
        assert not names.logins["victim"][0].is_ended

    asyncio.run(do())


def test_a_name_is_refused_if_each_other_one_has_a_single_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t, "LOGINS_MAX", 2)

    async def do() -> None:
        names = Names()
        assert names.log_in("a")
        assert names.log_in("b")
        assert not names.log_in("c")
        assert names.log_in("a")
        assert names.left() == {"a": 1, "b": 1, "c": 0}

    asyncio.run(do())


def test_the_largest_name_is_known_whatever_ends() -> None:
    names = t.LoginNames()
    random = Random(7)
    kept: dict[str, list[bytes]] = {name: [] for name in "abcd"}
    for number in range(2_000):
        name = random.choice("abcd")
        if kept[name] and random.random() < 0.5:
            key = kept[name].pop(random.randrange(len(kept[name])))
            names.remove(name, key)
        else:
            kept[name].append(b"%d" % number)
            names.add(name, kept[name][-1])
        counts = {name: len(keys) for name, keys in kept.items()}
        assert names.largest == max(counts.values())
        assert {name: names.count(name) for name in "abcd"} == counts
        if names.largest:
            largest = names.one_of_the_largest()
            assert counts[largest] == names.largest
            assert names.oldest(largest) == kept[largest][0]


def test_each_login_still_expires_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t, "_STALE_EXPIRIES_MIN", 0)

    async def do() -> None:
        table, now_s = t.LoginTable(), asyncio.get_running_loop().time()
        early, late = table.add(b"early", PROOF, now_s + 3600), table.add(b"late", PROOF, now_s + 3600)
        assert early is not None
        assert late is not None
        for number in range(20):
            table.extend(late, PROOF, now_s + 3600 + number)
        table.extend(early, PROOF, now_s)
        await asyncio.sleep(0.01)
        assert early.is_ended
        assert not late.is_ended

    asyncio.run(do())


def test_a_password_that_is_set_again_as_it_was_ends_no_login() -> None:
    """The call that sets it may come twice: salt and iterations are the caller's, so the credential is the same."""

    def users(salt: bytes) -> Users:
        return apply_all(
            Users(), [ScramCredentialSet("alice", "SCRAM-SHA-256", ScramCredential(salt, b"s", b"k", 4096))]
        )

    before = users(b"salt")
    credential = before.find("alice", "SCRAM-SHA-256")
    proof = t.Proof("User:alice", "alice", "PLAIN", credential, "SCRAM-SHA-256")
    assert proof.holds(before)
    assert proof.holds(users(b"salt"))
    assert not proof.holds(users(b"other salt"))
    assert not proof.holds(Users())
