"""Rights to read the files of topics, as a file system expresses them.

Guards two promises: a user or group gets a right only if every principal that it stands for may read the topic;
and what cannot be expressed is listed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bus.cli.failures import Failure
from bus.model import CLUSTER_METADATA_TOPIC, ROOT_MARKER
from bus.security.acls import ANY_PRINCIPAL
from bus.security.file_readers import FileReaders, TopicReaders

PrincipalMap = Mapping[str, str]  # a principal -> its user or group in the storage
_POSIX_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}\$?")
_POSIX_TARGET = re.compile(r"[ug]:([A-Za-z0-9_][A-Za-z0-9._-]*\$?)")


@dataclass(frozen=True, slots=True)
class Grants:
    """Rights in the storage. `readers` and `denied`: topics by user or group. `not_expressed`: a line of text each."""

    readers: dict[str, list[str]]
    denied: dict[str, list[str]]
    not_expressed: list[str]


def parse_principal_map(text: str) -> PrincipalMap:
    """Lines of a principal, which may contain blanks, and of its user or group in the storage, which has none;
    `#` begins a comment line. Raises `Failure`."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"--principal-map, line {number}"
        principal, _, target = line.strip().rpartition(" ")
        principal = principal.strip()
        if not principal.startswith("User:"):
            raise Failure(f"{where}: expected User:<name> and who that is in the storage, found {line.strip()!r}")
        if found.setdefault(principal, target) != target:
            raise Failure(
                f"{where}: expected each principal once, found {principal} as {found[principal]} and {target}"
            )
    return found


def posix_target(principal: str, mapped: PrincipalMap) -> str | None:
    """`u:<user>` or `g:<group>`, the user of the same name unless the map has another one. None: it has none. Raises
    `Failure`."""
    target = mapped.get(principal)
    if target is None:
        name = principal.removeprefix("User:")
        return f"u:{name}" if _POSIX_NAME.fullmatch(name) else None
    if not _POSIX_TARGET.fullmatch(target):
        raise Failure(f"--principal-map: expected u:<user> or g:<group> for {principal}, found {target!r}")
    return target


def _may_deny(target: str) -> bool:
    """A user's entry counts before those of groups; of several groups that which grants counts."""
    return target.startswith("u:")


class GrantPlan:
    """`mapped`: who principals are in the storage, where they have another name there."""

    def __init__(self, mapped: PrincipalMap) -> None:
        self._mapped = mapped

    def grants(self, found: FileReaders) -> Grants:
        """The rights that express what `found` allows. Raises `Failure` for a map that names no user or group."""
        principals = sorted({name for topic in found.topics for name in (*topic.allowed, *topic.denied)})
        targets = {name: posix_target(name, self._mapped) for name in principals}
        not_expressed = [f"{one.acl}: {one.reason}" for one in found.not_expressed]
        not_expressed += [
            f"{name}: name in --principal-map who it is in the storage" for name in principals if not targets[name]
        ]
        grants = Grants({}, {}, not_expressed)
        for topic in found.topics:
            self._add(topic, targets, grants)
        return grants

    def _add(self, topic: TopicReaders, targets: Mapping[str, str | None], grants: Grants) -> None:
        allowed, denied = list(topic.allowed), [targets[name] for name in topic.denied]
        if ANY_PRINCIPAL in allowed and not all(target and _may_deny(target) for target in denied):
            allowed.remove(ANY_PRINCIPAL)
            message = (
                f"{ANY_PRINCIPAL} may read {topic.topic}, but not all of {', '.join(topic.denied)} can be denied it"
            )
            grants.not_expressed.append(message)
        for target in dict.fromkeys(filter(None, map(targets.get, allowed))):
            others = [name for name, of in targets.items() if of == target and name not in allowed]
            if others:
                message = f"{target} is also {', '.join(others)}, who may not read {topic.topic}: it is granted nothing"
                grants.not_expressed.append(message)
            else:
                grants.readers.setdefault(target, []).append(topic.topic)
        if targets.get(ANY_PRINCIPAL) is not None and ANY_PRINCIPAL in allowed:
            for target in dict.fromkeys(filter(None, denied)):
                grants.denied.setdefault(target, []).append(topic.topic)


def posix_script(grants: Grants, root: str, *, tables_only: bool) -> Iterator[str]:
    """Lines for a shell: `setfacl` for what is there, and as the default for what comes."""
    yield "# Who may read the files of topics, by `bus acls export`. It revokes no right that was given before."
    yield from (f"# not expressed: {line}" for line in grants.not_expressed)
    for target, topics in grants.denied.items():
        yield from _setfacl(f"{target}:-", _folders(root, topics))
    for target, topics in grants.readers.items():
        folders = _folders(root, topics if tables_only else [*with_metadata(topics)])
        yield f"setfacl -m {target}:x {_quoted(root, f'{root}/topics')}"
        if not tables_only:
            yield f"setfacl -m {target}:r {_quoted(f'{root}/{ROOT_MARKER}')}"
        yield from _setfacl(f"{target}:rX", folders)


def _setfacl(entry: str, folders: Sequence[str]) -> Iterator[str]:
    """The default first, so that nothing falls in between."""
    yield f"setfacl -R -d -m {entry} {_quoted(*folders)}"
    yield f"setfacl -R -m {entry} {_quoted(*folders)}"


def with_metadata(topics: Sequence[str]) -> Sequence[str]:
    return topics if CLUSTER_METADATA_TOPIC in topics else [CLUSTER_METADATA_TOPIC, *topics]


def _folders(root: str, topics: Sequence[str]) -> list[str]:
    return [f"{root}/topics/{topic}" for topic in topics]


def _quoted(*paths: str) -> str:
    return " ".join(map(shlex.quote, paths))
