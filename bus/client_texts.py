"""What a client says, as far as the bus keeps it or repeats it.

Texts that name a thing are bounded in bytes of UTF-8 and have no control characters, so that no log line and no table
can be forged with them.
"""

from __future__ import annotations

import re

from bus.errors import ErrorCode, Refused

REASON_LENGTH_MAX = 255  # Kafka's
CLIENT_ID_HEADER = "client-id"  # of every call: the client's name for itself
CLIENT_ID_BYTES_MAX = 255

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def check_text(what: str, text: str, bytes_max: int, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> Refused | None:
    """Why `text` is not taken as `what`, with `code`; an empty one is."""
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            return Refused(code, f"expected {what} of whole characters, found {text[:REASON_LENGTH_MAX]!a}")
    if size > bytes_max:
        return Refused(code, f"expected {what} of at most {bytes_max} bytes, found {size}")
    control = _CONTROL.search(text)
    if control is not None:
        return Refused(
            code,
            f"expected {what} without control characters, found {control.group()!a} at position {control.start()}",
        )
    return None


def shown(text: str, length_max: int = REASON_LENGTH_MAX) -> str:
    """What a client said, as far as a message or a log line may repeat it."""
    return _CONTROL.sub(" ", text[:length_max])
