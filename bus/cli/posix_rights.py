"""Rights to a file or folder of a local file system: modes and POSIX access control lists of Linux.

Follows POSIX 1003.1e, draft 17, 23.1.5 (access check), and acl(5). Reads attributes and no contents.
"""

from __future__ import annotations

import errno
import functools
import grp
import os
import pwd
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
        """Of a member of this group and no other that the list names."""
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
    """By `u:<user>` or `g:<group>`, a name or a number. None: this machine has none of the name."""
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
