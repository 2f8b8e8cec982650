"""Users: what is accepted, what is refused and why, and records that come back as they were."""

from __future__ import annotations

import pytest

from bus.errors import ErrorCode, Refused
from bus.security import users as rules
from bus.security.scram import SCRAM_MECHANISMS, SCRAM_SHA_256, ScramCredential, salt_password
from bus.security.users import (
    Alteration,
    AlterStep,
    DecoyKeySet,
    DeleteScram,
    ScramCredentialDeleted,
    ScramCredentialSet,
    SetScram,
    Users,
    apply_all,
    decide_alter,
    decode_record,
    encode_record,
)

SHA_256, SHA_512 = SCRAM_MECHANISMS
SALT = b"12345678"


def setting(name: str, mechanism: str = SHA_256, *, iterations: int = 4096, salt: bytes = SALT) -> SetScram:
    size = SCRAM_MECHANISMS[mechanism].size_bytes if mechanism in SCRAM_MECHANISMS else 32
    return SetScram(name, mechanism, iterations, salt, b"p" * size)


def decide(users: Users, *alterations: Alteration) -> AlterStep:
    return decide_alter(users, alterations, new_decoy_key=b"d" * 32)


def with_user(*names: str) -> Users:
    users = Users()
    return apply_all(users, decide(users, *map(setting, names)).records)


def code_of(step: AlterStep, name: str) -> ErrorCode | None:
    refusal = step.answers[name]
    return None if refusal is None else refusal.code


def test_a_user_comes_with_a_password_and_goes_with_the_last_one() -> None:
    users = with_user("alice")
    users = apply_all(users, decide(users, setting("alice", SHA_512)).records)
    assert set(users.by_name["alice"]) == {SHA_256, SHA_512}
    users = apply_all(users, decide(users, DeleteScram("alice", SHA_256)).records)
    assert users.find("alice", SHA_256) is None
    assert users.find("alice", SHA_512) is not None
    users = apply_all(users, decide(users, DeleteScram("alice", SHA_512)).records)
    assert not users.by_name


def test_each_user_is_decided_alone() -> None:
    step = decide(Users(), setting("alice"), DeleteScram("bob", SHA_256), setting("bob", SHA_512), setting("carol"))
    assert code_of(step, "bob") is ErrorCode.RESOURCE_NOT_FOUND
    assert list(apply_all(Users(), step.records).by_name) == ["alice", "carol"]


@pytest.mark.parametrize(
    ("alteration", "code"),
    [
        (setting("alice", "SCRAM-MD5"), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (DeleteScram("alice", "PLAIN"), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (DeleteScram("alice", SHA_256), ErrorCode.RESOURCE_NOT_FOUND),
        (setting("alice", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (setting("alice", iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (setting("alice", salt=b"1234567"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (SetScram("alice", SHA_256, 4096, SALT, b"short"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        *[
            (setting(name), ErrorCode.UNACCEPTABLE_CREDENTIAL)
            for name in (
                *("", " alice", "al\nice", "al\x00ice", "a" * 257, "ä" * 129, "\ud800", "ANONYMOUS", "*"),
                *("alice\u200b", "\u202ealice", "alice\ufe0f", "\u3164"),  # look like another name, or like none
                *("\uff41lice", "ame\u0301lie", "o\ufb03ce"),  # have another form
            )
        ],
    ],
)
def test_what_cannot_be_is_refused(alteration: Alteration, code: ErrorCode) -> None:
    step = decide(Users(), alteration)
    assert code_of(step, alteration.name) is code
    assert not step.records


def test_a_refusal_shows_no_control_character() -> None:
    refusal = decide(Users(), setting("al\nice")).answers["al\nice"]
    assert refusal is not None
    assert refusal.message.isprintable()


def test_one_mechanism_of_a_user_twice_is_a_duplicate() -> None:
    step = decide(with_user("alice"), DeleteScram("alice", SHA_256), setting("alice"))
    assert code_of(step, "alice") is ErrorCode.DUPLICATE_RESOURCE
    assert not step.records


def test_users_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "USERS_MAX", 2)
    users = with_user("alice")
    step = decide(users, setting("bob"), setting("carol"), setting("alice"))
    assert [name for name, refusal in step.answers.items() if isinstance(refusal, Refused)] == ["carol"]
    assert code_of(step, "carol") is ErrorCode.POLICY_VIOLATION


def test_the_first_change_brings_the_key_of_decoys_and_no_later_one() -> None:
    first = decide(Users(), setting("alice"))
    assert first.records[0] == DecoyKeySet(b"d" * 32)
    later = decide(apply_all(Users(), first.records), setting("bob"))
    assert [type(record) for record in later.records] == [ScramCredentialSet]


@pytest.mark.parametrize(
    "record",
    [
        ScramCredentialSet("alice", SHA_256, ScramCredential(b"salt", b"stored", b"server", 4096)),
        ScramCredentialDeleted("CN=a,b", SHA_512),
        DecoyKeySet(b"key"),
    ],
)
def test_a_record_comes_back_as_it_was(record: rules.UserRecord) -> None:
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize("row", [{"type": "Later"}, {}, {"type": "DecoyKeySet"}, {"type": "ScramCredentialDeleted"}])
def test_what_is_no_record_is_refused(row: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        decode_record(row)


def test_nothing_secret_is_in_a_repr() -> None:
    salted = salt_password(SCRAM_SHA_256, "pencil", SALT, 4096)
    change = SetScram("alice", SHA_256, 4096, SALT, salted)
    step = decide(Users(), change)
    users = apply_all(Users(), step.records)
    stored = users.by_name["alice"][SHA_256].stored_key
    for shown in (repr(change), repr(step), repr(users)):
        assert not any(repr(secret)[2:-1] in shown for secret in (salted, SALT, stored, b"d" * 32))
