"""Spark sessions that can read topics.

The settings are those of conf/spark-defaults.conf, and of no other place; what is added here depends on the machine:
where Delta's jars are, which Python runs the workers, which address a local driver binds to. A program that
spark-submit has started gets what its command line says, and nothing from here.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bus.extras import ExtraMissing, check_extra
from bus.platform.reentry import logger_of
from bus.spark.jars import FOLDER_VARIABLE, check_jars, delta_coordinate, jars_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# For a session of a query or two: Java compiles quickly instead of well, which halves the time to the first answers.
# A session that works for minutes is better off without.
SHORT_SESSION = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}

_log = logger_of(__name__)
DEFAULTS_FILE = Path(__file__).with_name("spark-defaults.conf")
_EXTENSIONS = "spark.sql.extensions"
_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


class SparkUnavailable(RuntimeError):
    """No session that can read topics can be started here; the message says what is missing."""


def session(app_name: str = "bus", master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session with Delta and the settings of the bus; `conf` wins over them.

    A session that is active already is returned as it is. Under spark-submit its own options count, the master among
    them, and `conf` wins over them. Raises `SparkUnavailable` if the session has no Delta, or without Java or PySpark;
    `JarsMissing` if the folder of Delta's jars is incomplete or of another version.
    """
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted:  # a cluster may have Delta as jars alone
        _check_packages()
    _check_java()
    _show_source()
    settings = {} if is_submitted else {"spark.master": master, **read_defaults(), **_machine_settings(master)}
    with warnings.catch_warnings():
        # Nothing here goes through pandas; it may be installed for other reasons.
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        try:
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise no_pyspark(error) from error
        active = SparkSession.getActiveSession()
        if active is not None:
            return _check_delta(active)
        builder = SparkSession.builder.appName(app_name)
        for name, value in {**settings, **(conf or {})}.items():
            builder = builder.config(name, value)
        return _check_delta(builder.getOrCreate())


def no_pyspark(error: ImportError) -> SparkUnavailable:
    return SparkUnavailable(
        f"expected PySpark 4.2 and delta-spark 4.4, found no module {error.name} here: pip install 'delta-bus[spark]'"
    )


def _check_packages() -> None:
    try:
        check_extra("spark")
    except ExtraMissing as error:
        raise no_pyspark(error) from None


def read_defaults(file: Path = DEFAULTS_FILE) -> dict[str, str]:
    """The settings of a file in the form of Spark's own spark-defaults.conf."""
    settings = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, value = text.partition(" ")
        if not value.strip():
            raise ValueError(f"expected a name and a value in line {number} of {file}, found {text!r}")
        settings[name] = value.strip()
    return settings


def _machine_settings(master: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark's workers take the first python3 on the path
    if master.startswith("local"):
        # Without these a local driver resolves the host's name and listens on the address that it finds.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings.update({"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"})
    folder = jars_folder()
    if folder is not None and (folder.is_dir() or FOLDER_VARIABLE in os.environ):
        settings["spark.jars"] = ",".join(str(jar.absolute()) for jar in check_jars(folder))
    else:
        _log.warning(
            "Spark fetches Delta's jars over the network; to keep them: python -m bus.spark.jars FOLDER, and name "
            "the folder in %s",
            FOLDER_VARIABLE,
        )
        settings["spark.jars.packages"] = delta_coordinate()
    return settings


def _show_source() -> None:
    """Spark looks for `format("bus")` in the folders of its workers' path, where an editable install is not."""
    folder = str(Path(__file__).parents[2])
    folders = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if folder not in [*folders, *site.getsitepackages(), site.getusersitepackages()]:
        os.environ["PYTHONPATH"] = os.pathsep.join([*folders, folder])


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    if shutil.which(java) is None:
        where = f"in JAVA_HOME={home}" if home else "on the path"
        raise SparkUnavailable(
            f"expected a Java 17 or 21 for Spark, found none {where}; Debian, Ubuntu: apt install "
            "openjdk-17-jre-headless, macOS: brew install openjdk@17"
        )


def _check_delta(spark: SparkSession) -> SparkSession:
    extensions = spark.conf.get(_EXTENSIONS, "") or ""
    if _DELTA_EXTENSION not in extensions:
        raise SparkUnavailable(
            f"expected {_EXTENSIONS} of the active Spark session to have {_DELTA_EXTENSION}, found "
            f"{extensions or 'none'}: stop that session first, or start it with conf/spark-defaults.conf"
        )
    return spark
