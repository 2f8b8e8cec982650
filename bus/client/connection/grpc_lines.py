"""Lines that gRPC's core writes on stderr by itself: none, where a program says nothing else by GRPC_VERBOSITY.

What it has to say of a connection comes as an error, too, or is mended by itself; a client that is idle while a broker
restarts or a middlebox cuts must not write into a program's output. The core reads the variable once, when it is
imported first, so this module comes before every other one that imports it, and leaves the environment, which child
processes inherit, as it was. A program that has imported gRPC before decides itself.
"""

from __future__ import annotations

import os

_VARIABLE = "GRPC_VERBOSITY"


def _import_quietly() -> None:
    has_chosen = _VARIABLE in os.environ
    os.environ.setdefault(_VARIABLE, "NONE")
    try:
        import grpc  # noqa: F401  for what it reads while it is imported
    finally:
        if not has_chosen:
            del os.environ[_VARIABLE]


_import_quietly()
