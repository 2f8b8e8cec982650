"""What a client says, as far as the bus keeps it or repeats it.

Texts that name a thing are bounded in bytes of UTF-8 and have no control characters, nor those that turn the direction
of what is shown, so that no log line and no table can be forged with them.
"""

from __future__ import annotations

import re

from bus.errors import ErrorCode, Refused

REASON_LENGTH_MAX = 255  # Kafka's
CLIENT_ID_HEADER = "client-id"  # of every call: the client's name for itself
CLIENT_ID_BYTES_MAX = 255

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

# Letters and marks that are not shown; `str.isprintable` knows the others.
_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


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


def is_seen(name: str) -> bool:
    """Whether people see each character of it, and no blanks are around it: else it looks like another name."""
    return name.isprintable() and name == name.strip() and _UNSEEN.search(name) is None


def check_user(what: str, name: str) -> Refused | None:
    """Why `what` means no user: no caller can prove to have such a name, so that it would have no effect."""
    # The end of a certificate's name may be a blank, which RFC 2253 writes behind a backslash.
    if is_seen(name.removesuffix("\\ ")):
        return None
    return Refused(
        ErrorCode.INVALID_REQUEST,
        f"expected {what} without characters that are not seen and blanks around the name, found "
        f"{name[:REASON_LENGTH_MAX]!a}",
    )


def shown(text: str, length_max: int = REASON_LENGTH_MAX) -> str:
    """What a client said, as far as a message or a log line may repeat it."""
    return _CONTROL.sub(" ", text[:length_max])
