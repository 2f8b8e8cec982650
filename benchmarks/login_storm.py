"""New connections at a pace, with logins or without: `python -m benchmarks.login_storm --connections 500 ...`.

A process of its own, so that what clients compute is not counted as the broker's. Each connection is a new channel of
gRPC's, which logs in by SCRAM if there is a user, asks for the metadata of one topic, and stays open. The password is
salted once: every client has its own processor for that. Guards one promise: a connection counts only if the broker has
answered the question, behind the login where there is one. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import resource
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np

from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.security.scram import SCRAM_SHA_256, ScramClient, salt_password

_TIMEOUT_S = 30.0
Headers = tuple[tuple[str, str], ...]


class Passwords:
    """Of one user: salted with each salt that the broker names, once."""

    def __init__(self, name: str, password: str) -> None:
        self.name = name
        self._password = password
        self._salted: dict[tuple[bytes, int], bytes] = {}

    def salted(self, salt: bytes, iterations: int) -> bytes:
        key = salt, iterations
        if key not in self._salted:
            self._salted[key] = salt_password(SCRAM_SHA_256, self._password, salt, iterations)
        return self._salted[key]


def log_in(stub: bus_pb2_grpc.BusStub, user: Passwords) -> Headers:
    """What the calls of this connection show from now on. Raises `RuntimeError`, `grpc.RpcError`."""
    client = ScramClient(SCRAM_SHA_256, user.name, "", secrets.token_urlsafe(24), user.salted)
    requests: queue.SimpleQueue[pb.SaslAuthenticateRequest | None] = queue.SimpleQueue()
    answers = stub.SaslAuthenticate(iter(requests.get, None), timeout=_TIMEOUT_S)

    def ask(message: bytes) -> pb.SaslAuthenticateResponse:
        requests.put(pb.SaslAuthenticateRequest(mechanism=SCRAM_SHA_256.name, auth_bytes=message))
        answer: pb.SaslAuthenticateResponse = next(answers)
        if answer.error_code:
            raise RuntimeError(f"the login was refused: {answer.error_message}")
        return answer

    try:
        last = ask(client.final(ask(client.first()).auth_bytes))
        client.check(last.auth_bytes)
    finally:
        requests.put(None)
    return (("authorization", f"Session {last.session_token}"),)


def connect(
    address: str, credentials: grpc.ChannelCredentials | None, user: Passwords | None, topic: str
) -> grpc.Channel:
    """Open, and answered. A channel shares no connection with another one."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        channel = grpc.secure_channel(address, credentials, options=options)
    stub = bus_pb2_grpc.BusStub(channel)
    headers = () if user is None else log_in(stub, user)
    answer = stub.Metadata(pb.MetadataRequest(topics=[topic]), timeout=_TIMEOUT_S, metadata=headers)
    if [one.error_code for one in answer.topics] != [0]:
        raise RuntimeError(f"expected the metadata of {topic}, found {answer}")
    return channel


def run_at_a_pace(count: int, seconds: float, work: Callable[[], grpc.Channel]) -> list[float]:
    """Seconds of each, from the moment when it was due. All channels are open to the end."""
    taken, channels = [], []
    started = time.perf_counter()
    for number in range(count):
        due = started + number * seconds / count
        time.sleep(max(0.0, due - time.perf_counter()))
        channels.append(work())
        taken.append(time.perf_counter() - due)
    for channel in channels:
        channel.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.login_storm", description="New connections at a pace.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True, help="exists")
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="over which they are spread")
    parser.add_argument("--user", help="by SCRAM-SHA-256; default: no login")
    parser.add_argument("--password-file", type=Path)
    parser.add_argument("--authority", type=Path, metavar="FILE", help="by TLS, trusting this authority")
    parser.add_argument("--nice", type=int, default=0, help="clients have processors of their own, but not here")
    arguments = parser.parse_args()
    os.nice(arguments.nice)
    user = None if arguments.user is None else Passwords(arguments.user, arguments.password_file.read_text().strip())
    authority = arguments.authority
    credentials = None if authority is None else grpc.ssl_channel_credentials(authority.read_bytes())
    before = resource.getrusage(resource.RUSAGE_SELF)
    taken = run_at_a_pace(
        arguments.connections,
        arguments.seconds,
        lambda: connect(arguments.address, credentials, user, arguments.topic),
    )
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    p50, p99 = (float(value) * 1_000 for value in np.percentile(taken, [50, 99]))
    sys.stdout.write(json.dumps({"p50_ms": p50, "p99_ms": p99, "cpu_seconds": cpu, "connections": len(taken)}) + "\n")


if __name__ == "__main__":
    main()
