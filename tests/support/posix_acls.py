"""Access control lists of files, set as setfacl sets them, without the program."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping
from pathlib import Path

_TAGS = {"u": (0x01, 0x02), "g": (0x04, 0x08)}
_NO_ID = 0xFFFFFFFF


def has_acls(folder: Path) -> bool:
    """True if the file system of the folder has POSIX ACLs."""
    try:
        os.getxattr(folder, "system.posix_acl_access")
    except OSError as error:
        return error.errno == errno.ENODATA
    except AttributeError:
        return False
    return True


def set_acl(path: Path, named: Mapping[str, int], *, mask: int = 7, is_default: bool = False) -> None:
    """`named`: rights by `u:<id>` and `g:<id>`. The rights of owner, group and others are those of the mode."""
    mode = path.stat().st_mode
    entries = [(0x01, mode >> 6 & 7, _NO_ID), (0x04, mode >> 3 & 7, _NO_ID), (0x20, mode & 7, _NO_ID)]
    entries += [(0x10, mask, _NO_ID)]
    for name, rights in named.items():
        kind, _, number = name.partition(":")
        entries.append((_TAGS[kind][1], rights, int(number)))
    content = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in sorted(entries))
    os.setxattr(path, f"system.posix_acl_{'default' if is_default else 'access'}", content)


def grant(folder: Path, named: Mapping[str, int]) -> None:
    """Grant rights like `setfacl -R` with `rX`, on existing files and as defaults for new ones."""
    for path in (folder, *folder.rglob("*")):
        rights = {name: right & 6 | (right & 4) // 4 if path.is_dir() else right & 6 for name, right in named.items()}
        set_acl(path, rights, mask=5 if path.is_dir() else 4)
        if path.is_dir():
            set_acl(path, rights, is_default=True)
