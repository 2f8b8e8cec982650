"""Spark's Kafka connector: four jars from Maven Central once, beside Kafka's own.

The versions are those that work together with the installed pyspark: the token provider of Spark 4.2 is not on Maven
Central, that of 4.0 serves. Guards the same promise as `kafka_jars`: what is in the folder is complete.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks.kafka_jars import JARS, PeerMissing

CONNECTOR = JARS.with_name(f"{JARS.name}-spark")
_ARTIFACTS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)


def connector_jars() -> list[Path]:
    """Where they are, or will be."""
    parts = (artifact.split(":") for artifact in _ARTIFACTS)
    return [CONNECTOR / f"{name}-{version}.jar" for _, name, version in parts]


def resolve_connector() -> None:
    """Fetch the jars if they are not there. Raises `PeerMissing`."""
    if all(jar.exists() for jar in connector_jars()):
        return
    if shutil.which("mvn") is None:
        raise PeerMissing("no `mvn` on the path: install Maven once (for example maven), it fetches Spark's connector")
    gathered = CONNECTOR.with_name(CONNECTOR.name + ".part")
    shutil.rmtree(gathered, ignore_errors=True)
    for artifact in _ARTIFACTS:
        copy = ["dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={gathered.absolute()}"]
        fetched = subprocess.run(["mvn", "-q", "-B", *copy], capture_output=True, text=True)
        if fetched.returncode != 0:
            said = (fetched.stdout + fetched.stderr).strip()[-500:]
            raise PeerMissing(f"{artifact}, of Spark's Kafka connector, could not be fetched: {said}")
    shutil.rmtree(CONNECTOR, ignore_errors=True)
    gathered.rename(CONNECTOR)
