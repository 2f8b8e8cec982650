"""The memory of logins, beyond what calls show."""

from __future__ import annotations

import asyncio

import pytest

from bus.runtime.users import login_table as t
from bus.scram import ScramCredential
from bus.users.users import ScramCredentialSet, Users, apply_all

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
