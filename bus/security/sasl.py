"""Names of SASL's mechanisms, and the line of JAAS in which Kafka's users keep what they log in with."""

from __future__ import annotations

import re
from collections.abc import Mapping

from bus.security.scram import SCRAM_MECHANISMS

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
# The error for a session, password or token that was valid and is no longer: a new login may help.
SESSION_EXPIRED = "the session has expired; log in again"
PASSWORD_MECHANISMS = (*SCRAM_MECHANISMS, PLAIN)
MECHANISMS = (*PASSWORD_MECHANISMS, OAUTHBEARER)
# Kafka's, with the reason why there is no such thing here.
ABSENT_MECHANISMS: Mapping[str, str] = {
    "GSSAPI": "there is no Kerberos: take SCRAM-SHA-512, or OAUTHBEARER with your identity provider",
}
_OPTION = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_LINE = re.compile(r"\s*[\w.$]+\s+(?:required|requisite|sufficient|optional)\b(.*?);?\s*", re.DOTALL | re.IGNORECASE)


def parse_jaas(text: str) -> Mapping[str, str]:
    """The options of `Module required name="value" ...;`. Raises `ValueError`, which has nothing of the text in it."""
    line = _LINE.fullmatch(text)
    if line is None:
        raise ValueError('a line of JAAS: org.apache...LoginModule required username="u" password="p";')
    options = {name: _value(*values) for name, *values in _OPTION.findall(line[1])}
    if _OPTION.sub("", line[1]).strip():
        raise ValueError('options of the form name="value" in the line of JAAS, and a semicolon at its end')
    return options


def _value(double_quoted: str, single_quoted: str, plain: str) -> str:
    return re.sub(r"\\(.)", r"\1", double_quoted or single_quoted) or plain
