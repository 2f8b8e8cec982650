"""Decoys for names that are no users, beside the answers for users: nothing tells which is which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bus.security.scram import SCRAM_MECHANISMS, SCRAM_SHA_256, SCRAM_SHA_512, ScramCredential
from bus.security.users import DeleteScram, SetScram, Users, apply_all, decide_alter

Shown = tuple[int, int]  # length of the salt, rounds
KEY = b"d" * 32


def users_of(*settings: tuple[str, str, Shown]) -> Users:
    alterations = [
        SetScram(name, mechanism, rounds, b"s" * length, b"p" * SCRAM_MECHANISMS[mechanism].size_bytes)
        for name, mechanism, (length, rounds) in settings
    ]
    return apply_all(Users(), decide_alter(Users(), alterations, new_decoy_key=KEY).records)


def shown_of(users: Users, name: str) -> tuple[Shown, Shown]:
    """To one that asks by each mechanism before it has proved anything."""
    found = [
        users.find(name, mechanism.name) or users.decoy(mechanism, name, own_key=b"")
        for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512)
    ]
    one, other = ((len(credential.salt), credential.iterations) for credential in found)
    return one, other


def shares(users: Users, names: Iterable[str]) -> dict[tuple[Shown, Shown], float]:
    counts = Counter(shown_of(users, name) for name in names)
    return {shown: count / counts.total() for shown, count in counts.items()}


def test_decoys_look_as_users_do_and_as_often() -> None:
    settings: list[tuple[str, str, Shown]] = []
    for number in range(50):
        settings += [(f"new-{number}", mechanism, (32, 4096)) for mechanism in SCRAM_MECHANISMS]
    for number in range(30):
        settings += [(f"typed-{number}", mechanism, (32, 16_384)) for mechanism in SCRAM_MECHANISMS]
    settings += [(f"kafka-{number}", "SCRAM-SHA-512", (26, 8192)) for number in range(15)]
    settings += [(f"mixed-{number}", "SCRAM-SHA-256", (8, 4096)) for number in range(5)]
    settings += [(f"mixed-{number}", "SCRAM-SHA-512", (128, 5000)) for number in range(5)]
    users = users_of(*settings)
    of_users = shares(users, users.by_name)
    of_decoys = shares(users, (f"nobody-{number}" for number in range(4000)))
    assert of_users.keys() == of_decoys.keys()
    assert all(abs(of_users[shown] - of_decoys[shown]) < 0.03 for shown in of_users)


def test_a_decoy_is_the_same_at_every_broker_and_none_is_like_another() -> None:
    users = users_of(("alice", "SCRAM-SHA-256", (26, 8192)), ("bob", "SCRAM-SHA-256", (32, 4096)))
    again = users_of(("bob", "SCRAM-SHA-256", (32, 4096)), ("alice", "SCRAM-SHA-256", (26, 8192)))
    seen: set[bytes] = set()
    for number in range(100):
        decoy = users.decoy(SCRAM_SHA_256, f"nobody-{number}", own_key=b"one broker's")
        assert decoy == again.decoy(SCRAM_SHA_256, f"nobody-{number}", own_key=b"another broker's")
        assert not seen & {decoy.salt, decoy.stored_key, decoy.server_key}
        seen |= {decoy.salt, decoy.stored_key, decoy.server_key}


def test_a_decoy_whose_shape_changes_has_another_salt() -> None:
    """A longer one that begins with the earlier one would be no user's."""
    before = users_of(("alice", "SCRAM-SHA-256", (26, 4096)))
    after = users_of(("alice", "SCRAM-SHA-256", (32, 4096)))
    one, other = (users.decoy(SCRAM_SHA_256, "nobody", own_key=b"") for users in (before, after))
    assert (len(one.salt), len(other.salt)) == (26, 32)
    assert other.salt[:26] != one.salt


def test_one_user_more_changes_few_decoys() -> None:
    shapes = [(8 + number % 7, 4096 + number % 5) for number in range(1000)]
    before = users_of(*((f"user-{number}", "SCRAM-SHA-256", shape) for number, shape in enumerate(shapes)))
    new = SetScram("new", "SCRAM-SHA-256", 4096, b"s" * 9, b"p" * 32)
    after = apply_all(before, decide_alter(before, [new], new_decoy_key=b"").records)
    names = [f"nobody-{number}" for number in range(1000)]
    changed = sum(_salt(before, name) != _salt(after, name) for name in names)
    assert changed < 50


def test_what_is_kept_of_shapes_is_what_a_replay_makes_of_them() -> None:
    users = users_of(("alice", "SCRAM-SHA-256", (26, 4096)), ("bob", "SCRAM-SHA-512", (32, 16_384)))
    changes = [DeleteScram("alice", "SCRAM-SHA-256"), SetScram("bob", "SCRAM-SHA-512", 4096, b"s" * 32, b"p" * 64)]
    users = apply_all(users, decide_alter(users, changes, new_decoy_key=b"").records)
    assert shares(users, (f"nobody-{number}" for number in range(20))) == {((32, 4096), (32, 4096)): 1.0}


def test_without_users_decoys_are_as_the_sdk_makes_users() -> None:
    assert shown_of(Users(), "nobody") == ((32, 4096), (32, 4096))
    decoys = [Users().decoy(SCRAM_SHA_256, "nobody", own_key=key) for key in (b"a", b"b")]
    assert decoys[0] != decoys[1]


def _salt(users: Users, name: str) -> bytes:
    credential: ScramCredential = users.decoy(SCRAM_SHA_256, name, own_key=b"")
    return credential.salt
