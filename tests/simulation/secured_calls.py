"""Users of a simulated cluster whose rights and passwords come and go, who changes them, and what is promised of it.

The judges know the ACLs and the users as they come to the disk, and decide by a scan of all bindings. What a broker has
applied is what it says itself when a call arrives.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from bus.client.admin.admin import encode_upsertion
from bus.client.connection.metadata_cache import TopicInfo
from bus.client.values import UserScramCredentialUpsertion
from bus.cluster_metadata.cluster_state import ClusterState
from bus.descriptions import ScramCredentialInfo
from bus.errors import BusError, ErrorCode
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.value_messages import ACL, ACL_FILTER
from bus.model import LATEST_TIMESTAMP
from bus.security.acls import AclBinding, AclBindingFilter, AclOperation, AclPermission, PatternMatch, PatternType
from bus.security.scram import SCRAM_SHA_256
from bus.security.users import Users, apply_all, decode_record
from tests.simulation.broker_invariants import Invariant
from tests.simulation.broker_network import UserLogin
from tests.simulation.broker_programs import Program, ask
from tests.simulation.memos import read_rows
from tests.support.acls import allow, deny, prefixed

if TYPE_CHECKING:
    from tests.simulation.broker_network import Answered
    from tests.simulation.broker_world import BrokerWorld

USERS = ("alice", "bob")
_PASSWORD = "pencil-and-paper"
_MECHANISM = SCRAM_SHA_256.name
_ITERATIONS = 4_096
_USERS_FOLDER = "private/users"
_USERS_VERSION = re.compile(rf"{_USERS_FOLDER}/_delta_log/(\d{{20}})\.json")
_NEEDED = {"ListOffsets": AclOperation.DESCRIBE, "FetchOnce": AclOperation.READ, "ProduceOnce": AclOperation.WRITE}
# To be allowed one of these is to be allowed to describe.
_DESCRIBING = (AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER)


# ---------------------------------------------------------------- programs


class User(Program):
    """Lists, reads and writes a topic, whether it may or not."""

    def __init__(self, world: BrokerWorld, name: str, topic: TopicInfo) -> None:
        super().__init__(world, name)
        self._topic = topic
        self._login = UserLogin(name, _PASSWORD)

    async def do_something(self) -> None:
        world = self.world
        await asyncio.sleep(world.random.choice((0.0, 0.01, world.random.uniform(0, 0.5))))
        method, partition = world.random.choice(list(_NEEDED)), world.random.randrange(len(self._topic.partitions))
        await ask(world, self.name, method, _request(method, self._topic.name, partition), login=self._login)


def _request(method: str, topic: str, partition: int) -> Any:
    match method:
        case "ListOffsets":
            asked = pb.ListOffsetsPartition(topic=topic, partition=partition, timestamp_ms=LATEST_TIMESTAMP)
            return pb.ListOffsetsRequest(partitions=[asked])
        case "FetchOnce":
            return pb.FetchRequest(partitions=[pb.FetchPartition(topic=topic, partition=partition, fetch_offset=0)])
        case _:
            data = pb.PartitionProduceData(topic=topic, partition=partition, arrow=_one_record())
            return pb.ProduceRequest(acks=-1, partitions=[data])


def _one_record() -> bytes:
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"v"], pa.binary())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


class SecurityAdmin(Program):
    """Allows and denies, takes that back, and takes passwords away and gives them again."""

    def __init__(self, world: BrokerWorld, topic: str) -> None:
        super().__init__(world, "security")
        self._topic = topic

    async def begin(self) -> None:
        """There are all users, and they may do some of what they do."""
        for user in USERS:
            while await self._set_password(user) is None:
                pass
        for operation in (AclOperation.READ, AclOperation.WRITE):
            await self._create_acl(allow(operation, self._topic, principal=f"User:{USERS[0]}"))

    async def do_something(self) -> None:
        world = self.world
        await asyncio.sleep(world.random.uniform(0, 0.8))
        user = world.random.choice(USERS)
        match world.random.randrange(6):
            case 0:
                await self._delete_password(user)
                await asyncio.sleep(world.random.uniform(0, 3.0))
                await self._set_password(user)
            case 1 | 2:
                await self._delete_acls(user)
            case _:
                await self._create_acl(self._any_acl(user))

    def _any_acl(self, user: str) -> AclBinding:
        world = self.world
        operation = world.random.choice((*_NEEDED.values(), AclOperation.ALL))
        principal = world.random.choice((f"User:{user}", f"User:{user}", "User:*"))
        one = world.random.choice((allow, allow, deny))(operation, self._topic, principal=principal)
        return prefixed(replace(one, resource_name=self._topic[:1])) if world.random.randrange(3) == 0 else one

    async def _create_acl(self, acl: AclBinding) -> None:
        await self._change("CreateAcls", pb.CreateAclsRequest(acls=[ACL.encode(acl)]))

    async def _delete_acls(self, user: str) -> None:
        """Delete the ACLs of the user, or of all users."""
        permission = self.world.random.choice((AclPermission.ALLOW, AclPermission.DENY, AclPermission.DENY))
        principal = self.world.random.choice((f"User:{user}", "User:*", None))
        wanted = AclBindingFilter(pattern_type=PatternMatch.ANY, principal=principal, permission=permission)
        await self._change("DeleteAcls", pb.DeleteAclsRequest(filters=[ACL_FILTER.encode(wanted)]))

    async def _set_password(self, user: str) -> Any:
        salt = f"salt of {user}".encode()
        info = ScramCredentialInfo(_MECHANISM, _ITERATIONS)
        one = encode_upsertion(UserScramCredentialUpsertion(user, info, _PASSWORD, salt))
        return await self._change("AlterUserScramCredentials", pb.AlterUserScramCredentialsRequest(upsertions=[one]))

    async def _delete_password(self, user: str) -> None:
        request = pb.AlterUserScramCredentialsRequest()
        request.deletions.add(user=user, mechanism=_MECHANISM)
        await self._change("AlterUserScramCredentials", request)

    async def _change(self, method: str, request: Any) -> Any:
        answer = await ask(self.world, self.name, method, request, is_repeatable=False)
        return None if isinstance(answer, BusError) else answer


# ---------------------------------------------------------------- promises


class _Judge(Invariant):
    """A judge of the calls of users."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self.judged: dict[bool, int] = {True: 0, False: 0}  # calls that had to be as the promise says, by the outcome

    def on_answered(self, answered: Answered) -> None:
        if answered.user:
            self.judge(answered)

    def judge(self, answered: Answered) -> None: ...


class AclsDecide(_Judge):
    """A call that arrives after a broker has applied a denial is refused; one that is allowed by all that the broker
    applies until it answers is not."""

    def judge(self, answered: Answered) -> None:
        code = _code_of(answered.answer)
        if code is None:
            return
        is_refused = code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        end = answered.life.core.cluster.metadata.applied_offset
        states = _states_between(self.world, answered.applied_offset, end)
        topic = answered.request.partitions[0].topic
        operation = _NEEDED[answered.method]
        may = {_may(state, f"User:{answered.user}", operation, topic) for state in states}
        if may == {False}:
            assert is_refused, f"{answered.life.name} let {answered.user} {operation.value} {topic}: {code.name}"
        if may == {True}:
            assert not is_refused, f"{answered.life.name} refused {answered.user} to {operation.value} {topic}"
        self.judged[is_refused] += len(may) == 1


def _code_of(answer: Any) -> ErrorCode | None:
    return None if isinstance(answer, BusError) else ErrorCode(answer.partitions[0].error_code)


def _states_between(world: BrokerWorld, begin: int, end: int) -> list[ClusterState]:
    """The state after the records below `begin`, and all that followed up to `end`."""
    later = len(world.journal.states_behind(end)) - 1
    states = world.journal.states_behind(begin)
    return states[: len(states) - later]


def _may(state: ClusterState, principal: str, operation: AclOperation, topic: str) -> bool:
    about = [acl for acl in state.acls.bindings if acl.principal in (principal, "User:*") and _is_about(acl, topic)]
    denied = {acl.operation for acl in about if acl.permission is AclPermission.DENY}
    allowed = {acl.operation for acl in about if acl.permission is AclPermission.ALLOW}
    if not denied.isdisjoint((operation, AclOperation.ALL)):
        return False
    enough = _DESCRIBING if operation is AclOperation.DESCRIBE else (operation,)
    return not allowed.isdisjoint((*enough, AclOperation.ALL))


def _is_about(acl: AclBinding, topic: str) -> bool:
    return (
        topic.startswith(acl.resource_name) if acl.pattern_type is PatternType.PREFIXED else topic == acl.resource_name
    )


class LoginsFollowTheUsers(_Judge):
    """A broker that knows that a name is no user lets it in no more; a user with an unchanged password is always let
    in."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self._versions: dict[int, tuple[float, Users]] = {}  # by number; since when they are so

    def on_created(self, key: str, data: bytes) -> None:
        match = _USERS_VERSION.fullmatch(key)
        if match is not None:
            adds = [action["add"] for action in map(json.loads, data.splitlines()) if "add" in action]
            rows = [value for add in adds if add["dataChange"] for (value,) in self._read(unquote(add["path"]))]
            before = self._versions[max(self._versions)][1] if self._versions else Users()
            self._versions[int(match[1])] = self.world.now, apply_all(before, list(map(decode_record, rows)))

    def on_lost(self, key: str) -> None:
        match = _USERS_VERSION.fullmatch(key)
        if match is not None:
            self._versions.pop(int(match[1]), None)

    def _read(self, path: str) -> Sequence[tuple[Any, ...]]:
        return read_rows(self.world.disk.files.get(f"{_USERS_FOLDER}/{path}"), "value")

    def judge(self, answered: Answered) -> None:
        answer, now_known = answered.answer, answered.life.server.users
        is_refused = isinstance(answer, BusError) and answer.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        if (isinstance(answer, BusError) and not is_refused) or answered.users is None or now_known is None:
            return
        known = [answered.users, now_known]
        found = {_proof(users, answered.user) for users in (*known, *self._since(answered.arrived_at))}
        if len(found) > 1:
            return
        if found == {None}:
            assert is_refused, f"{answered.life.name} let {answered.user} in, who is no user"
        else:
            assert not is_refused, f"{answered.life.name} did not let {answered.user} in: {answer}"
        self.judged[is_refused] += 1

    def _since(self, time: float) -> list[Users]:
        """Return the users at that time and all later ones."""
        found = [Users()]
        for number in sorted(self._versions):
            at, users = self._versions[number]
            found = [*found, users] if at >= time else [users]
        return found


def _proof(users: Users, name: str) -> tuple[bytes, ...] | None:
    credential = users.find(name, _MECHANISM)
    return None if credential is None else (credential.salt, credential.stored_key)


SECURITY_INVARIANTS = (AclsDecide, LoginsFollowTheUsers)
