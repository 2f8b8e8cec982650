"""A callback that gRPC calls with each socket of a server before it uses it (the argument `grpc.socket_mutator`).

The layout is that of gRPC's `grpc_socket_mutator` and its table of functions. It is no public one, and another layout
would end the process, so it is used only with the releases of gRPC with which it was tried (`IS_TRIED`). Guards one
promise: gRPC is always answered that the socket may be used, since it would close the whole listener otherwise. What is
made here is kept for the life of the process: gRPC's threads may outlive the server.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any

import grpc

_log = logging.getLogger(__name__)

IS_TRIED = grpc.__version__.startswith("1.85.")

_LISTENING, _CONNECTION = 1, 2  # grpc_fd_usage; 0 is a client's connection

_Mutate = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_int, ctypes.c_void_p)
_Compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_Destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _SocketInfo(ctypes.Structure):
    """The struct grpc_mutate_socket_info."""

    _fields_ = (("fd", ctypes.c_int), ("usage", ctypes.c_int))


_MutateWithInfo = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.POINTER(_SocketInfo), ctypes.c_void_p)


class _Functions(ctypes.Structure):
    """The struct grpc_socket_mutator_vtable."""

    _fields_ = (
        ("mutate_fd", _Mutate),
        ("compare", _Compare),
        ("destroy", _Destroy),
        ("mutate_fd_2", _MutateWithInfo),
    )


class _Mutator(ctypes.Structure):
    """The struct grpc_socket_mutator."""

    _fields_ = (("functions", ctypes.POINTER(_Functions)), ("references", ctypes.c_ssize_t))


class _Pointer:
    """An address, which gRPC takes the number of such an argument for."""

    def __init__(self, mutator: _Mutator) -> None:
        self._mutator = mutator

    def __int__(self) -> int:
        return ctypes.addressof(self._mutator)


_kept: list[Any] = []


def socket_mutator(
    on_listening: Callable[[int], object], on_connection: Callable[[int], object]
) -> tuple[str, _Pointer]:
    """The argument for gRPC. Both are called with a descriptor that stays gRPC's: with those of the listener's own
    sockets when they are bound, and in a thread of gRPC's with that of each connection before anything is read from
    it."""

    def mutate(info: Any, _: Any) -> bool:
        try:
            on_use = {_LISTENING: on_listening, _CONNECTION: on_connection}.get(info.contents.usage)
            if on_use is not None:
                on_use(info.contents.fd)
        except Exception as error:
            _log.error("a socket could not be looked at", exc_info=error)
        return True

    functions = _Functions(
        _Mutate(lambda descriptor, mutator: True),
        _Compare(lambda one, other: (one > other) - (one < other)),
        _Destroy(lambda mutator: None),
        _MutateWithInfo(mutate),
    )
    mutator = _Mutator(ctypes.pointer(functions), 1)
    _kept.append((functions, mutator))
    return "grpc.socket_mutator", _Pointer(mutator)
