"""Promises of a cluster about rights and passwords that change while calls run and brokers fail.

BUS_SEEDS says how many seeds are played, BUS_SEED the first one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from bus.broker_api.authorization import Authorizer
from bus.broker_api.logins import LoginApi
from bus.runtime.login_table import LoginTable
from bus.security.acl_index import AclIndex, index_of
from bus.security.acls import AclPermission
from tests.simulation.broker_faults import NO_FAULTS, some_faults
from tests.simulation.broker_programs import create_topic
from tests.simulation.broker_world import BrokerWorld, simulate
from tests.simulation.secured_calls import SECURITY_INVARIANTS, USERS, SecurityAdmin, User
from tests.simulation.test_broker import disturb
from tests.support.seeds import seeds

pytestmark = pytest.mark.timeout(300)  # many seeds, on a machine that may be busy


class SecuredWorld(BrokerWorld):
    """Brokers ask one another without a login, as super users; users log in at a listener of their own."""

    def __init__(self, seed: int, *, is_calm: bool = False) -> None:
        faults = NO_FAULTS if is_calm else some_faults(Random(seed), rarer=4)
        super().__init__(
            seed,
            faults,
            broker_count=3,
            has_user_listener=True,
            authorizer_class_name="acl",
            super_users="User:ANONYMOUS",
            sasl_enabled_mechanisms=("PLAIN",),
        )
        self.invariants = [invariant(self) for invariant in SECURITY_INVARIANTS]


async def use_and_change_rights(world: BrokerWorld) -> None:
    world.start()
    topic = await create_topic(world, "topic", 2, {})
    admin = SecurityAdmin(world, topic.name)
    await admin.begin()
    world.spawn(admin.run())
    for user in USERS:
        for _ in range(2):
            world.spawn(User(world, user, topic).run())
    if world.faults == NO_FAULTS:
        await asyncio.sleep(20.0)
    else:
        await disturb(world, 20.0)
    await world.settle()


def test_rights_and_logins_are_as_they_were_applied_whatever_fails() -> None:
    for seed in seeds(6):
        simulate(seed, SecuredWorld, use_and_change_rights)


def test_each_judge_has_judged_what_was_refused_and_what_was_not() -> None:
    world = simulate(0, lambda seed: SecuredWorld(seed, is_calm=True), use_and_change_rights)
    for judge in world.invariants:
        assert min(judge.judged.values()) >= 10, (type(judge).__name__, judge.judged)  # type: ignore[attr-defined]


# ---------------------------------------------------------------- planted bugs


def remember(monkeypatch: pytest.MonkeyPatch, permission: AclPermission) -> None:
    """Make the authorizer remember: what was once allowed, or denied, stays so."""
    seen: dict[Authorizer, dict[Any, None]] = {}

    def index(self: Authorizer) -> AclIndex:
        known = seen.setdefault(self, {})
        now = self._state().acls
        known.update(dict.fromkeys(acl for acl in now if acl.permission is permission))
        others = (acl for acl in now if acl.permission is not permission)
        denied = () if permission is AclPermission.ALLOW else others
        return index_of([*known, *denied])

    monkeypatch.setattr(Authorizer, "index", property(index))


def broken_denials(monkeypatch: pytest.MonkeyPatch) -> None:
    remember(monkeypatch, AclPermission.ALLOW)


def broken_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    remember(monkeypatch, AclPermission.DENY)


def broken_ends_of_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login outlives its password."""
    monkeypatch.setattr(LoginTable, "check_all", lambda self, users: 0)


def broken_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login that a broker does not remember is refused every other time."""
    find, count = LoginApi._find_plain, iter(range(1_000_000))

    async def find_at_times(self: LoginApi, *args: Any) -> Any:
        return await find(self, *args) if next(count) % 2 else None

    monkeypatch.setattr(LoginApi, "_find_plain", find_at_times)


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (broken_denials, "AclsDecide: .* let "),
        (broken_grants, "AclsDecide: .* refused "),
        (broken_ends_of_logins, "LoginsFollowTheUsers: .* who is no user"),
        (broken_logins, "LoginsFollowTheUsers: .* did not let "),
    ],
)
def test_broken_promise_is_seen(
    break_it: Callable[[pytest.MonkeyPatch], None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    with pytest.raises(AssertionError, match=told):
        simulate(0, lambda seed: SecuredWorld(seed, is_calm=True), use_and_change_rights)
