"""The Spark session of a command: local by default, or on whatever cluster `--master` names.

Every command that works on Spark opens its session here, so that the settings which make small batches fast, and the
sentences about what is missing, are written once.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidings.errors import InvalidRequest, TidingsError
from tidings.spark import INSTALL, register
from tidings.spark.reach import check_reachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = "Spark needs Java 17 or newer, and there is none: install it (Debian and Ubuntu: openjdk-17-jre-headless)."
CONNECT = 'Spark Connect (sc://) needs packages of its own: pip install "pyspark[connect]".'
LOOPBACK = "127.0.0.1"
LAST_LINES = 3
ATTEMPTS = 4
"""How often a task is tried; in local mode Spark tries once unless it is told."""
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""On a local disk this one takes a third of the time."""
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
SHUFFLE_PARTITIONS_MIN, SHUFFLE_PARTITIONS_MAX = 4, 200
EXECUTOR_S_MAX = 10.0
"""How long a session of a cluster waits for its first executor, to know how many cores there are."""
JAVA_OPTIONS = (
    # Spark looks into the text of an error by a pattern that recurs for each part of it. A query that is stopped in
    # the middle of a job has a long one, and would end by a stack overflow instead.
    "-Xss16m "
    # Arrow asks at every access whether a buffer is still there and long enough. Rows come from workers that this
    # session has started, and the JVM reads a tenth faster without.
    "-Darrow.enable_unsafe_memory_access=true"
)
LOOPBACK_MASTER = re.compile(r"local.*|spark://(127\.0\.0\.1|localhost):\d+")
"""Workers on this machine find the driver on loopback; the name of a machine may stand for any of its addresses."""
MASTERS = re.compile(r"local(\[[^\]]+\])?|local-cluster\[[^\]]+\]|spark://.+|sc://.+|yarn|k8s://.+")


def local_master() -> str:
    """All cores of this machine, with tasks that are tried again."""
    return f"local[*,{ATTEMPTS}]"


def check_master(master: str) -> str:
    """A master that Spark knows, or InvalidRequest.

    >>> check_master("spark://127.0.0.1:7077")
    'spark://127.0.0.1:7077'
    """
    if not MASTERS.fullmatch(master):
        raise InvalidRequest(
            f"The master {master!r} is not a Spark master: write local[2], spark://HOST:PORT, sc://HOST, yarn or k8s://URL."
        )
    return master


def check_ready(master: str | None) -> str:
    """The master, or the default one, if a session can be opened there; call it before work that would be in vain.

    InvalidRequest when PySpark or Java is missing or the master is none that Spark knows, Unavailable when nobody
    answers there.
    """
    master = check_master(master or local_master())
    if any(importlib.util.find_spec(package) is None for package in ("pyspark", "pyarrow")):
        raise InvalidRequest(INSTALL)
    if not master.startswith("sc://"):
        check_java()
    check_reachable(master)
    return master


@contextlib.contextmanager
def spark_session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session with the format `tidings` for the time of a command; it is stopped at the end.

    With `sc://` the session is a Spark Connect server's, which has its settings already. InvalidRequest says so when
    PySpark or Java is missing.
    """
    with tempfile.TemporaryDirectory(prefix="tidings-spark-") as folder:
        session = open_session(name, master, settings, Path(folder) / "spark.log")
        try:
            yield session
        finally:
            session.stop()


def open_session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None, log: Path | None = None
) -> SparkSession:
    """A session for the rest of the process; `spark_session` is the same with an end.

    What is wrong comes as an exception. What Spark's processes say beside that goes into `log`, if one is given.
    """
    master = check_ready(master)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master.startswith("sc://"):
        builder = builder.remote(master)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master)
        for key, value in (_defaults(master) | dict(settings or {})).items():
            builder = builder.config(key, value)
    with warnings.catch_warnings(), _stderr_to(log):
        warnings.simplefilter("ignore")  # Those of Spark's own modules.
        try:
            session = builder.getOrCreate()
        except ImportError as error:
            raise InvalidRequest(f"{CONNECT} ({error})" if master.startswith("sc://") else str(error)) from error
        except RuntimeError as error:  # PySpark's way to say that Java did not start.
            raise TidingsError(f"Spark did not start ({error}): {_last_words(log)}") from error
    if not master.startswith("sc://"):
        session.sparkContext.setLogLevel("OFF")  # Errors come as exceptions; a query that is stopped would complain.
        _fit_shuffles(session)
    register(session)
    return session


def _fit_shuffles(session: SparkSession) -> None:
    """A shuffle has as many parts as the cluster has cores, unless somebody has chosen: 200 of them, Spark's default,
    take a small cluster longer to start than to work. The state of a query keeps the number of its first run.
    """
    context = session.sparkContext
    if context.getConf().contains(SHUFFLE_PARTITIONS):
        return
    executors = context._jsc.sc().getExecutorMemoryStatus()  # The driver is counted too.
    deadline = time.monotonic() + EXECUTOR_S_MAX
    while executors.size() < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        executors = context._jsc.sc().getExecutorMemoryStatus()
    cores = context.defaultParallelism
    session.conf.set(SHUFFLE_PARTITIONS, str(min(max(cores, SHUFFLE_PARTITIONS_MIN), SHUFFLE_PARTITIONS_MAX)))


@contextlib.contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """Processes that are started inside write their errors there, for as long as they live."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    before = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _last_words(log: Path | None) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log is not None else []
    # Java's own words are followed by those of the scripts that started it.
    return "; ".join(lines[-LAST_LINES:]) or "it did not say why."


def _defaults(master: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Over TCP the JVM and its Python workers wait 40 ms for each other's acknowledgements, once for each task.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if LOOPBACK_MASTER.fullmatch(master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if master.startswith("local"):
        settings |= {
            SHUFFLE_PARTITIONS: str(os.cpu_count() or 1),
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
        }
    return settings


def check_java() -> None:
    """Raises InvalidRequest when there is no Java to run Spark on."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        raise InvalidRequest(JAVA)
