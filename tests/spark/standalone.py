"""Spark's own servers on loopback, as people run them: a standalone cluster of two workers, and a Connect server.

They come from the scripts of the PySpark package. Each is started in a session of its own, so that it can be ended
with whatever it has started, and nothing else.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from tests.integration.broker_process import ROOT

WORKERS = 2
EXECUTOR_MEMORY = "512m"
WORKER_MEMORY = "640m"
START_S_MAX = 120.0
PYTHON_WORKER = "pyspark.daemon pyspark.worker"
"""How the processes that run tasks are called; a driver has others, with which it plans."""

SETTINGS = {
    "spark.executor.memory": EXECUTOR_MEMORY,
    "spark.executor.cores": "1",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-Xss16m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""What the cluster's users find in spark-defaults.conf."""


def spark_home() -> Path:
    """Where the PySpark package keeps its scripts."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


class SparkServer:
    """One of Spark's server processes, with the log that says when it is ready."""

    def __init__(self, folder: Path, name: str, *command: str, environment: dict[str, str] | None = None) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(spark_home() / "bin" / command[0]), *command[1:]],
                env=os.environ | {"SPARK_HOME": str(spark_home())} | (environment or {}),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str, count: int = 1) -> list[str]:
        """Waits until the log has so many lines like this; what the pattern has taken from them."""
        deadline = time.monotonic() + START_S_MAX
        while len(found := re.findall(pattern, self.text())) < count:
            assert self._process.poll() is None, f"It ended: {self.text()[-3000:]}"
            assert time.monotonic() < deadline, f"It did not start: {self.text()[-3000:]}"
            time.sleep(0.05)
        return found

    def end(self) -> None:
        """Ends it and everything that it has started; Python workers have process groups of their own."""
        kill_session(self._process)


def kill_session(leader: subprocess.Popen[bytes]) -> None:
    """SIGKILL for a process that was started in a session of its own, and for all that it has started."""
    for pid in [*session_of(leader.pid), leader.pid]:
        with contextlib.suppress(ProcessLookupError):  # It went with its parent.
            os.kill(pid, signal.SIGKILL)
    leader.wait()


def session_of(leader: int) -> dict[int, str]:
    """The processes of a session, with their command lines."""
    command = ["ps", "-e", "-ww", "-o", "pid=,sess=,args="]  # Whole lines, however wide a terminal is said to be.
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    found = {}
    for line in listed.stdout.splitlines():
        pid, session, arguments = line.split(None, 2)
        if int(session) == leader and int(pid) != leader:
            found[int(pid)] = arguments
    return found


class StandaloneCluster:
    """A master and two workers with a core each, on ports that were free."""

    def __init__(
        self, folder: Path, cores: int = 1, memory: str = WORKER_MEMORY, settings: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        self._servers: list[SparkServer] = []
        self.conf = folder / "conf"
        self.conf.mkdir(parents=True)
        lines = [f"{name} {value}\n" for name, value in (SETTINGS | (settings or {})).items()]
        (self.conf / "spark-defaults.conf").write_text("".join(lines))
        daemon = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "SPARK_CONF_DIR": str(self.conf)}
        try:
            main = ("spark-class", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1")
            self._master = self._start("master", *main, "--port", "0", "--webui-port", "0", environment=daemon)
            [self.master] = self._master.wait_for(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
            for number in range(WORKERS):
                one = ("spark-class", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1")
                room = ("--cores", str(cores), "--memory", memory, "--work-dir", str(folder / f"work{number}"))
                self._start(f"worker{number}", *one, "--webui-port", "0", *room, self.master, environment=daemon)
            self._master.wait_for("Registering worker", WORKERS)
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, *command: str, environment: dict[str, str]) -> SparkServer:
        server = SparkServer(self.folder, name, *command, environment=environment)
        self._servers.append(server)
        return server

    def environment(self) -> dict[str, str]:
        """For a driver: this code, and the cluster's spark-defaults.conf."""
        return os.environ | {
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(self.conf),
        }

    def executors(self) -> list[int]:
        """The JVMs that run tasks."""
        return self._below("CoarseGrainedExecutorBackend")

    def python_workers(self) -> list[int]:
        """The Python processes in which an executor runs our code."""
        return self._below(PYTHON_WORKER)

    def _below(self, word: str) -> list[int]:
        found = [each for server in self._servers[1:] for each in session_of(server.pid).items()]
        return sorted(pid for pid, arguments in found if word in arguments)

    def close(self) -> None:
        for server in reversed(self._servers):
            server.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class ConnectServer:
    """A Spark Connect server in local mode; its clients need no Java."""

    def __init__(self, folder: Path, master: str = "local[2,4]") -> None:
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        } | SETTINGS
        command = ["spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        environment = {
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._server = SparkServer(folder, "connect", *command, "--master", master, environment=environment)
        try:
            [port] = self._server.wait_for(r"Spark Connect server started at: \S+:(\d+)")
        except BaseException:
            self.close()
            raise
        self.master = f"sc://127.0.0.1:{port}"

    def close(self) -> None:
        self._server.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
