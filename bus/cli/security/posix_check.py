"""A check that the files of topics may be read by those to whom ACLs allow it, and by no one else: the rights in force
on a local root, compared with what `bus acls export` grants.

Guards two promises. Every reader that ACLs allow and that cannot read the files of a topic, or those that come later,
is reported. So is every user and group that may read them although no ACL allows it, or that may write to them. The
owner and the group of the root are the broker's: they may read all of it, and are not compared.
"""

from __future__ import annotations

import errno
import functools
import grp
import os
import pwd
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bus.cli.failures import Failure
from bus.cli.security.acl_export import Grants
from bus.errors import count_of
from bus.model import CLUSTER_METADATA_TOPIC, ROOT_MARKER

# Rights to a file or folder of a local file system: modes and POSIX access control lists of Linux.
#
# Follows POSIX 1003.1e, draft 17, 23.1.5 (access check), and acl(5). Reads attributes and no contents.

READ, WRITE, SEARCH = 4, 2, 1  # bits of rights; to search a folder is to reach what is in it
_ACCESS, _DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
_VERSION = 2
_HEADER, _ENTRY = struct.Struct("<I"), struct.Struct("<HHI")
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_NO_ACL = (errno.ENODATA, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class Rights:
    """`users` and `groups`: what the list names, by id. `mask` bounds all but the owner's and others'."""

    owner_id: int
    group_id: int
    owner: int
    group: int
    other: int
    mask: int = 7
    users: Mapping[int, int] = field(default_factory=dict)
    groups: Mapping[int, int] = field(default_factory=dict)

    def of_user(self, user_id: int, group_ids: frozenset[int]) -> int:
        if user_id == self.owner_id:
            return self.owner
        if user_id in self.users:
            return self.users[user_id] & self.mask
        found = [rights & self.mask for group_id, rights in self._all_groups() if group_id in group_ids]
        return functools.reduce(int.__or__, found) if found else self.other

    def of_group(self, group_id: int) -> int:
        """Return the rights of a member of this group and no other that the list names."""
        found = [rights & self.mask for of, rights in self._all_groups() if of == group_id]
        return functools.reduce(int.__or__, found) if found else self.other

    def _all_groups(self) -> list[tuple[int, int]]:
        return [(self.group_id, self.group), *self.groups.items()]


@dataclass(frozen=True, slots=True)
class Reader:
    """`name`: `u:<user>` or `g:<group>`. A user has a `user_id`; a group has its own id alone."""

    name: str
    user_id: int | None
    group_ids: frozenset[int]

    def rights(self, rights: Rights) -> int:
        if self.user_id is not None:
            return rights.of_user(self.user_id, self.group_ids)
        return rights.of_group(next(iter(self.group_ids)))


def find_reader(name: str) -> Reader | None:
    """Find a reader by `u:<user>` or `g:<group>`, a name or a number. None: this machine has none of the name."""
    kind, _, text = name.partition(":")
    try:
        if kind == "g":
            return Reader(name, None, frozenset([int(text) if text.isdecimal() else grp.getgrnam(text).gr_gid]))
        user = pwd.getpwuid(int(text)) if text.isdecimal() else pwd.getpwnam(text)
    except KeyError:
        return Reader(name, int(text), frozenset()) if kind == "u" and text.isdecimal() else None
    return Reader(name, user.pw_uid, frozenset(os.getgrouplist(user.pw_name, user.pw_gid)))


@functools.cache
def user_name(user_id: int) -> str:
    try:
        return f"u:{pwd.getpwuid(user_id).pw_name}"
    except KeyError:
        return f"u:{user_id}"


@functools.cache
def group_name(group_id: int) -> str:
    try:
        return f"g:{grp.getgrgid(group_id).gr_name}"
    except KeyError:
        return f"g:{group_id}"


def rights_of(path: Path) -> Rights:
    """Those that are in force. Raises `OSError`."""
    found = path.stat(follow_symlinks=False)
    mode = found.st_mode
    plain = Rights(found.st_uid, found.st_gid, mode >> 6 & 7, mode >> 3 & 7, mode & 7)
    return _parse(_attribute(path, _ACCESS), plain)


def default_rights_of(folder: Path) -> Rights | None:
    """Those that what is made in the folder gets. None: the folder has none, and what is made gets its mode. Raises
    `OSError`."""
    found = folder.stat(follow_symlinks=False)
    content = _attribute(folder, _DEFAULT)
    return _parse(content, Rights(found.st_uid, found.st_gid, 0, 0, 0)) if content else None


def _attribute(path: Path, name: str) -> bytes:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_ACL:
            return b""
        raise


def _parse(content: bytes, plain: Rights) -> Rights:
    if len(content) < _HEADER.size:
        return plain
    [version] = _HEADER.unpack_from(content)
    if version != _VERSION or (len(content) - _HEADER.size) % _ENTRY.size:
        raise OSError(errno.EINVAL, f"expected an access control list of version {_VERSION}, found {version}")
    entries = list(_ENTRY.iter_unpack(content[_HEADER.size :]))
    base = {tag: rights for tag, rights, _ in entries}
    return Rights(
        plain.owner_id,
        plain.group_id,
        base.get(_USER_OBJ, 0),
        base.get(_GROUP_OBJ, 0),
        base.get(_OTHER, 0),
        base.get(_MASK, 7),
        {of: rights for tag, rights, of in entries if tag == _USER},
        {of: rights for tag, rights, of in entries if tag == _GROUP},
    )


_EVERYONE = "everyone"
_MISSING = "expected the right to read topic {}, found none for {}"
_EXCESS = "expected no right to read topic {}, found one for {}"
_WRITABLE = "expected no right to write to topic {}, found one for {}"
_MISSING_LATER = "expected a default right to read what comes to topic {}, found none at {}"
_EXCESS_LATER = "expected no default right to read what comes to topic {}, found one at {}"


def check_files(
    grants: Grants, root: str, topics: Iterable[str], *, tables_only: bool, brokers: Sequence[str] = ()
) -> Iterator[str]:
    """A line for each difference, by reader and topic. `brokers`: `u:<user>` and `g:<group>` that are not compared,
    beside the owner and the group of the root. Raises `Failure` if the root cannot be looked at."""
    folder = Path(root)
    if not hasattr(os, "getxattr") or not (folder / ROOT_MARKER).is_file():
        raise Failure(f"expected --root with the folder of a root on this machine (Linux), found {root}")
    named = {name: find_reader(name) for name in (*grants.readers, *grants.denied)}
    yield from (f"{name}: expected a user or group of this machine, found none" for name in named if not named[name])
    readers = [reader for reader in named.values() if reader is not None]
    try:
        yield from _check_way(folder, [one for one in readers if one.name in grants.readers], tables_only)
        for topic in sorted(topics):
            check = _TopicCheck(
                topic,
                [one for one in readers if _is_asked_for(topic, one.name, grants, tables_only)],
                [one for one in readers if topic in grants.denied.get(one.name, ())],
                rights_of(folder),
                _owners(folder, brokers),
                is_open=_is_open(folder),
            )
            check.look_through(folder / "topics" / topic)
            yield from check.differences()
    except PermissionError as error:
        raise Failure(f"{error.filename}: {error.strerror}; run this as the owner of the root") from None


def find_open_topic(root: str) -> str | None:
    """A topic that every user of this machine may read, whatever ACLs say. None: there is none, or the root is not on
    this machine, or cannot be looked at."""
    folder = Path(root)
    try:
        if not (folder / ROOT_MARKER).is_file() or not _is_open(folder):
            return None
        paths = sorted((folder / "topics").iterdir())
        return next((path.name for path in paths if rights_of(path).other & (READ | SEARCH) == READ | SEARCH), None)
    except OSError:
        return None


def _is_open(folder: Path) -> bool:
    """Return True if others than the named ones reach the topics."""
    return all(rights_of(path).other & SEARCH for path in (folder, folder / "topics"))


def _owners(folder: Path, brokers: Iterable[str]) -> frozenset[str]:
    rights = rights_of(folder)
    found = {user_name(rights.owner_id), group_name(rights.group_id)}
    for name in brokers:
        reader = find_reader(name)
        if reader is None:
            raise Failure(f"--broker: expected a user or group of this machine, found {name}")
        found.add(group_name(next(iter(reader.group_ids))) if reader.user_id is None else user_name(reader.user_id))
    return frozenset(found)


def _is_asked_for(topic: str, name: str, grants: Grants, tables_only: bool) -> bool:
    if topic == CLUSTER_METADATA_TOPIC and not tables_only and name in grants.readers:
        return True
    return topic in grants.readers.get(name, ())


def _check_way(folder: Path, readers: Sequence[Reader], tables_only: bool) -> Iterator[str]:
    """Report each reader that does not get from the root to the topics."""
    needed = [(folder, SEARCH, "search"), (folder / "topics", SEARCH, "search")]
    if not tables_only:
        needed.append((folder / ROOT_MARKER, READ, "read"))
    for path, right, verb in needed:
        rights = rights_of(path)
        for reader in readers:
            if not reader.rights(rights) & right:
                yield f"{reader.name}: expected the right to {verb} {path}, found none"


@dataclass(slots=True)
class _Places:
    count: int
    first: Path


class _TopicCheck:
    """`root`: the rights to it. `owners`: users and groups that are not compared. `is_open`: whether others than those
    who are named reach the topics at all."""

    def __init__(
        self,
        topic: str,
        allowed: Sequence[Reader],
        denied: Sequence[Reader],
        root: Rights,
        owners: frozenset[str],
        *,
        is_open: bool,
    ) -> None:
        self._topic = topic
        self._allowed = allowed
        self._denied = denied
        self._root = root
        self._owners = owners
        self._is_open = is_open
        self._files = 0
        self._folders = 0
        self._found: dict[tuple[str, str], _Places] = {}
        self._verdicts: dict[str, bool] = {}

    def look_through(self, folder: Path) -> None:
        """Files may come and go meanwhile. Raises `PermissionError`."""
        for path, is_folder in _walk(folder):
            try:
                rights = rights_of(path)
                default = default_rights_of(path) if is_folder else None
            except FileNotFoundError:
                continue
            self._files += not is_folder
            self._folders += is_folder
            self._compare(path, rights, READ | SEARCH if is_folder else READ, (_MISSING, _EXCESS))
            for name in sorted(set(self._who_may(WRITE, rights))):
                self._add(name, _WRITABLE, path)
            if is_folder:
                coming = _rights_to_what_comes(default, self._root)
                self._compare(path, coming, READ | SEARCH, (_MISSING_LATER, _EXCESS_LATER))

    def differences(self) -> Iterator[str]:
        for (name, text), places in self._found.items():
            of_all = f"{self._files + self._folders:,} files and folders"
            if text in (_MISSING_LATER, _EXCESS_LATER):
                of_all = count_of(self._folders, "folder")
            yield f"{name}: {text.format(self._topic, f'{places.count:,} of {of_all}')}, as {places.first}"

    def _compare(self, path: Path, rights: Rights, needed: int, texts: tuple[str, str]) -> None:
        missing, excess = texts
        for reader in self._allowed:
            if reader.rights(rights) & needed != needed:
                self._add(reader.name, missing, path)
        found = {name for name in self._who_may(READ, rights) if not self._is_allowed(name)}
        found |= {reader.name for reader in self._denied if reader.rights(rights) & READ}
        for name in sorted(found):
            self._add(name, excess, path)

    def _add(self, name: str, text: str, path: Path) -> None:
        self._found.setdefault((name, text), _Places(0, path)).count += 1

    def _who_may(self, right: int, rights: Rights) -> Iterator[str]:
        """The users and groups that the rights name, but for owners."""
        users = {rights.owner_id: rights.owner} | {of: one & rights.mask for of, one in rights.users.items()}
        groups = [(rights.group_id, rights.group), *rights.groups.items()]
        names = [user_name(of) for of, found in users.items() if found & right]
        names += [group_name(of) for of, found in groups if found & rights.mask & right]
        yield from (name for name in names if name not in self._owners)
        if rights.other & right and self._is_open:
            yield _EVERYONE

    def _is_allowed(self, name: str) -> bool:
        """Return True if a reader of that name is allowed, by itself or as a member of a group."""
        if name not in self._verdicts:
            reader = None if name == _EVERYONE else find_reader(name)
            self._verdicts[name] = reader is not None and any(
                bool(one.group_ids & reader.group_ids) if one.user_id is None else one.user_id == reader.user_id
                for one in self._allowed
            )
        return self._verdicts[name]


def _rights_to_what_comes(default: Rights | None, root: Rights) -> Rights:
    """Those of a new file or folder. The broker, which owns the root, creates files with mode 0640 and folders with
    mode 0750, and a default ACL cannot grant more."""
    if default is None:
        return Rights(root.owner_id, root.group_id, READ | SEARCH, READ | SEARCH, 0)
    mask = default.mask & (READ | SEARCH)
    return replace(default, owner_id=root.owner_id, group_id=root.group_id, mask=mask, other=0)


def _walk(folder: Path) -> Iterator[tuple[Path, bool]]:
    """The folder and all below it, but for symbolic links, which have no rights. Raises `PermissionError`."""
    yield folder, True
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                found = [(Path(one.path), one.is_dir(follow_symlinks=False)) for one in entries if not one.is_symlink()]
        except FileNotFoundError:
            continue
        waiting += [path for path, is_folder in found if is_folder]
        yield from found
