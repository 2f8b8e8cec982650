"""The rules of groups as a conversation between clients, who are called by name, and the coordinator of one group.

a joins as desk on orders,audit with range,sticky session=6000 rebalance=60000
                        with the member id and generation that it knows; only `a joins` is needed
a syncs a=x b=y         a leader gives each member its bytes
a beats                 a heartbeat
a commits orders-0=5 audit-1=7 meta=text
nobody commits orders-0=5       a consumer without membership
7.3 commits orders-0=5 for a    producer 7 in epoch 3, in its transaction, with what a knows; for nobody
7.3 votes, 7.3 applies, 7.3 drops       what the coordinator of the transaction asks
a leaves; desk leaves   by its member id; by its instance id, as an administrator would
a@1 beats               as if the generation that it knows were 1
a forgets               it will join as a new member
fetch orders-0 audit-1; fetch; fetch stable orders-0; fetch stable
wait 3000               milliseconds pass; what runs out meanwhile is told with its time
expire, delete, describe, delete offsets orders-0, delete topic orders
crash                   another coordinator loads the log; clients know nothing of it

Every outcome: answers and notices by client, `|` and the records that were written, `[state generation]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from bus.consumer_groups.group import GroupRules
from bus.consumer_groups.records import (
    GroupStored,
    GroupTombstone,
    LoggedRecord,
    OffsetCommitted,
    OffsetTombstone,
    TxnOffsetsEnded,
    TxnOffsetsPending,
)
from bus.consumer_groups.requests import (
    ApplyOffsets,
    Assignment,
    CommittedOffset,
    DeleteGroup,
    DescribedGroup,
    DescribeGroup,
    DropOffsets,
    GroupAnswer,
    GroupCommand,
    GroupDeleted,
    GroupProtocol,
    Heartbeat,
    HeartbeatTaken,
    Joined,
    JoinGroup,
    JoinRefused,
    LeaveGroup,
    LeavingMember,
    MembersRemoved,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    OffsetsVoted,
    OffsetToCommit,
    Synced,
    SyncGroup,
    TransactionKey,
    TxnOffsetCommit,
    TxnOffsetsSettled,
    VoteOffsets,
)
from bus.descriptions import PendingOffsets
from bus.errors import Refused
from bus.model import TopicPartition
from tests.support.group_rules_bench import GROUP_ID, GroupBench

TOPIC_ID = "id-of-{topic}"
_OPTIONS = re.compile(r"(?P<name>as|on|with) (?P<words>\S+)|(?P<key>\w+)=(?P<value>\S+)")
_DEFAULTS = {"as": "", "on": "orders", "with": "range", "session": "10000", "rebalance": "60000", "type": "consumer"}


@dataclass
class Client:
    name: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


class GroupDialogue:
    def __init__(self) -> None:
        self.bench = GroupBench(GroupRules(max_size=4))
        self.clients: dict[str, Client] = {}
        self.requests: dict[int, Client] = {}
        self.sequences: dict[TransactionKey, int] = {}
        self.told = 0  # of the bench's steps

    def say(self, command: str) -> str:
        """The outcome of one command."""
        match command.split():
            case ["wait", ms]:
                return self._wait(int(ms))
            case ["crash"]:
                self.bench.crash()
            case ["expire"]:
                self.bench.expire_offsets()
            case ["delete", "topic", topic]:
                self.bench.delete_topic(topic, TOPIC_ID.format(topic=topic))
            case ["delete", "offsets", *partitions]:
                self._ask(Client("-"), OffsetDelete(GROUP_ID, tuple(map(_partition, partitions))))
            case ["delete"]:
                self._ask(Client("-"), DeleteGroup(GROUP_ID))
            case ["describe"]:
                self._ask(Client("-"), DescribeGroup(GROUP_ID))
            case ["fetch", *words]:
                is_stable = words[:1] == ["stable"]
                wanted = tuple(map(_partition, words[is_stable:])) or None
                self._ask(Client("-"), OffsetFetch(GROUP_ID, wanted, require_stable=is_stable))
            case ["nobody", "commits", *offsets]:
                self._commit(Client("nobody"), offsets)
            case [name, verb, *words] if name[0].isdigit():
                self._transact(Client(name), verb, words)
            case [name, verb, *words]:
                self._speak(name, verb, words, command)
        return self._outcome()

    def _speak(self, name: str, verb: str, words: list[str], command: str) -> None:
        group = self.bench.group
        if verb == "leaves" and group is not None and name in group.instance_ids:
            self._ask(Client("-"), LeaveGroup(GROUP_ID, (LeavingMember("", name),)))
            return
        name, _, generation = name.partition("@")
        client = self.clients.setdefault(name, Client(name))
        if generation:
            client = replace(client, generation=int(generation))
        match verb:
            case "joins":
                self._join(client, command)
            case "syncs":
                pairs = dict(word.split("=") for word in words)
                given = {self._id_of(to): Assignment(data.encode()) for to, data in pairs.items()}
                self._ask(
                    client,
                    SyncGroup(GROUP_ID, client.generation, client.member_id, client.instance_id, None, None, given),
                )
            case "forgets":
                client.member_id, client.generation = "", -1
            case "beats":
                self._ask(client, Heartbeat(GROUP_ID, client.generation, client.member_id, client.instance_id))
            case "leaves":
                leaving = LeavingMember(client.member_id, client.instance_id)
                self._ask(client, LeaveGroup(GROUP_ID, (leaving,)))
            case "commits":
                self._commit(client, words)
            case _:
                raise AssertionError(f"no such command: {command}")

    def _join(self, client: Client, command: str) -> None:
        options = dict(_DEFAULTS)
        for found in _OPTIONS.finditer(command):
            options[found["name"] or found["key"]] = found["words"] or found["value"]
        client.instance_id = options["as"] or None
        topics = tuple(options["on"].split(","))
        protocols = tuple(GroupProtocol(name, ",".join(topics).encode(), topics) for name in options["with"].split(","))
        session_ms, rebalance_ms = int(options["session"]), int(options["rebalance"])
        self._ask(
            client,
            JoinGroup(
                GROUP_ID,
                client.member_id,
                client.instance_id,
                client.name,
                "/127.0.0.1",
                session_ms,
                rebalance_ms,
                options["type"],
                protocols,
            ),
        )

    def _commit(self, client: Client, words: Iterable[str]) -> None:
        offsets = _offsets(words)
        self._ask(client, OffsetCommit(GROUP_ID, client.generation, client.member_id, client.instance_id, offsets))

    def _transact(self, producer: Client, verb: str, words: list[str]) -> None:
        producer_id, _, epoch = producer.name.partition(".")
        transaction = TransactionKey(int(producer_id), int(epoch))
        match verb:
            case "commits":
                *words, _, name = words
                member = self.clients.get(name, Client(name))
                sequence = self.sequences[transaction] = self.sequences.get(transaction, -1) + 1
                self._ask(
                    producer,
                    TxnOffsetCommit(
                        GROUP_ID,
                        transaction,
                        sequence,
                        member.generation,
                        member.member_id,
                        member.instance_id,
                        _offsets(words),
                    ),
                )
            case "votes":
                self._ask(producer, VoteOffsets(GROUP_ID, transaction))
            case "applies":
                self._ask(producer, ApplyOffsets(GROUP_ID, transaction))
            case "drops":
                self._ask(producer, DropOffsets(GROUP_ID, transaction))
            case _:
                raise AssertionError(f"no such command: {verb}")

    def _ask(self, client: Client, command: GroupCommand) -> None:
        number = self.bench.last_request_id + 1
        self.requests[number] = client
        assert self.bench.ask(command, name=client.name) == number

    def _wait(self, ms: int) -> str:
        begin_ms, told = self.bench.now_ms, []
        end_ms = begin_ms + ms
        while (timer := self.bench.next_timer(end_ms)) is not None:
            self.bench.run_out(timer)
            who = f" of {timer.member_id}" if timer.member_id else ""
            happened = " ".join(self._happened())
            if happened:
                told.append(f"at {self.bench.now_ms - begin_ms} {timer.kind.value}{who}: {happened}")
        self.bench.now_ms = end_ms
        return "; ".join([*told, self._state()])

    def _outcome(self) -> str:
        return " ".join([*self._happened(), self._state()])

    def _state(self) -> str:
        group = self.bench.group
        return "[none]" if group is None else f"[{group.state.value} {group.generation}]"

    def _happened(self) -> Iterator[str]:
        steps, self.told = self.bench.steps[self.told :], len(self.bench.steps)
        for step in steps:
            said = [
                f"{self.requests[r.request_id].name}: {self._heard(r.request_id, r.answer)}"
                for r in step.replies
                if r.request_id
            ]
            said += [f"{n.member_id} told {n.refused.code.name}" for n in step.notices]
            if said:
                yield ", ".join(said)
            if written := step.records:
                yield "| " + ", ".join(map(_written, written))

    def _heard(self, request_id: int, answer: GroupAnswer) -> str:
        client = self.requests[request_id]
        match answer:
            case Joined():
                client.member_id, client.generation = answer.member_id, answer.generation
                members = " ".join(member.member_id for member in answer.members)
                what = f"leads {members}" if answer.members else f"follows {answer.leader_id}"
                skip = " and need not assign" if answer.skip_assignment else ""
                return f"{answer.member_id} in generation {answer.generation} by {answer.protocol} {what}{skip}"
            case JoinRefused(refused, member_id):
                client.member_id = member_id
                return f"{refused.code.name} {refused.message}"
            case Synced():
                return f"has {answer.assignment.decode() or 'nothing'}"
            case HeartbeatTaken() | GroupDeleted():
                return "ok"
            case MembersRemoved(results) | OffsetsCommitted(results) | OffsetsDeleted(results):
                return ", ".join("ok" if r is None else f"{r.code.name} {r.message}" for r in results)
            case OffsetsFetched(offsets):
                return " ".join(map(_fetched, offsets)) or "-"
            case OffsetsVoted(has_pending):
                return "yes" if has_pending else "no"
            case TxnOffsetsSettled():
                return "ok"
            case DescribedGroup():
                members = " ".join(f"{m.member_id}={m.assignment.decode()}" for m in answer.members)
                pending = "".join(f" pending {_named(of)}={of.offset_count}" for of in answer.pending_offsets)
                protocols = f"type {answer.protocol_type or '-'} protocol {answer.protocol or '-'}"
                return f"{protocols} members {members or '-'}{pending}"
            case Refused(code, message):
                return f"{code.name} {message}"

    def _id_of(self, name: str) -> str:
        return self.clients[name].member_id if name in self.clients else name


def _offsets(words: Iterable[str]) -> tuple[OffsetToCommit, ...]:
    pairs = [word.split("=") for word in words]
    metadata = next((value for key, value in pairs if key == "meta"), "")
    return tuple(
        OffsetToCommit(_partition(key), TOPIC_ID.format(topic=_partition(key).topic), int(value), metadata=metadata)
        for key, value in pairs
        if key != "meta"
    )


def _partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def _fetched(offset: CommittedOffset) -> str:
    if offset.refused is not None:
        return f"{offset.partition} {offset.refused.code.name} {offset.refused.message}"
    return f"{offset.partition}={offset.offset}{offset.metadata and f' {offset.metadata}'}"


def _named(transaction: TransactionKey | PendingOffsets) -> str:
    return f"{transaction.producer_id}.{transaction.producer_epoch}"


def _written(record: LoggedRecord) -> str:
    match record:
        case OffsetCommitted():
            return f"{record.partition}={record.offset}"
        case OffsetTombstone():
            return f"{record.partition} gone"
        case GroupStored():
            members = " ".join(f"{m.member_id}={m.assignment.data.decode()}" for m in record.members)
            return f"{record.state} {record.generation}{members and ' '}{members}"
        case GroupTombstone():
            return "group gone"
        case TxnOffsetsPending():
            offsets = " ".join(f"{offset.partition}={offset.offset}" for offset in record.offsets)
            return f"{_named(record.transaction)} pending {offsets or 'nothing'}"
        case TxnOffsetsEnded():
            return f"{_named(record.transaction)} ended"
