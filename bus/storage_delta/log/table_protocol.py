"""The Delta protocol of a table: who may read it, and who may write to it.

Guards two promises: every Delta engine may read a table of the bus, and none may write to a managed one. A managed
table names the writer feature `busManaged`, which only the bus knows. The Delta protocol ("Table Features") has every
other engine refuse to commit to it or to delete its files, and lets it read. Its two other features are those that the
writer version of any other table stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.storage_delta.log.actions import Protocol

READER_VERSION_MAX = 1
WRITER_VERSION_MAX = 2  # without features
_WRITER_VERSION_OF_FEATURES = 7
_MANAGED = "busManaged"
_WRITER_FEATURES = ("appendOnly", "invariants", _MANAGED)
KNOWN_PROTOCOLS = (
    f"up to ({READER_VERSION_MAX}, {WRITER_VERSION_MAX}), or ({READER_VERSION_MAX}, {_WRITER_VERSION_OF_FEATURES}) "
    f"with writer features out of {', '.join(_WRITER_FEATURES)}"
)


def protocol_of(*, is_managed: bool) -> Mapping[str, Any]:
    """The `protocol` action of a table. `is_managed`: engines other than the bus may not write to it."""
    if not is_managed:
        return {"minReaderVersion": READER_VERSION_MAX, "minWriterVersion": WRITER_VERSION_MAX}
    return {
        "minReaderVersion": READER_VERSION_MAX,
        "minWriterVersion": _WRITER_VERSION_OF_FEATURES,
        "writerFeatures": list(_WRITER_FEATURES),
    }


def is_managed(protocol: Protocol | None) -> bool:
    """True if no engine but the bus may write to the table."""
    return protocol is not None and _MANAGED in (protocol.writer_features or ())


def is_too_new(protocol: Protocol) -> bool:
    """True if readers or writers of this protocol need what this version of the bus lacks."""
    if protocol.reader_version > READER_VERSION_MAX:
        return True
    if protocol.writer_version <= WRITER_VERSION_MAX:
        return False
    features = protocol.writer_features
    is_listed = protocol.writer_version == _WRITER_VERSION_OF_FEATURES and features is not None
    return not is_listed or not set(features or ()) <= set(_WRITER_FEATURES)


def describe_protocol(protocol: Protocol) -> str:
    features = protocol.writer_features
    named = "" if features is None else f" with the writer features {', '.join(sorted(features)) or 'none'}"
    return f"({protocol.reader_version}, {protocol.writer_version}){named}"
