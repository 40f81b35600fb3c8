"""tidings works where Spark, or the Java that it runs on, is not installed, and says what to install (D6)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import tidings
from tests.integration.broker_process import ROOT
from tidings.spark import INSTALL
from tidings.spark.session import JAVA

SITE = Path(msgspec.__file__).parents[1]
SOURCE = Path(tidings.__file__).parents[1]
LEFT_OUT = ("pyspark", "py4j", "pyarrow", "deltalake", "pandas", "numpy", "duckdb", "polars", "grpc", "arro3")

ON_SPARK = [
    ["bench", "spark"],
    ["audit", "--lake", "."],
    ["simulate", "--sweep", "--seeds", "2", "--master", "local[2]"],
    ["pipeline", "run", "--lake", "lake", "--once", "--bus", "tcp://127.0.0.1:9", "--retries", "1"],
]
"""Commands that cannot do without it."""

TRAFFIC = """
import subprocess, sys, tidings

server = subprocess.Popen(
    [sys.executable, "-S", "-m", "tidings", "serve", "--data", sys.argv[1], "--bind", "tcp://127.0.0.1:*"],
    stderr=subprocess.PIPE, text=True,
)
try:
    line = next(line for line in server.stderr if line.startswith("tidings serves"))
    address = next(word for word in line.split() if word.startswith("tcp://"))
    with tidings.connect(address, "alice") as bus:
        bus.subscribe("news")
        bus.put("news", "hello")
        print(bus.get("news").text)
finally:
    server.kill()
    server.wait()
    server.stderr.close()
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("pyspark", "pyarrow", "deltalake", "numpy")))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed packages without those of the extra."""
    folder = tmp_path_factory.mktemp("site")
    for each in SITE.iterdir():
        if not each.name.lower().startswith(LEFT_OUT):
            (folder / each.name).symlink_to(each)
    return folder


def python(bare: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(bare), str(SOURCE), str(ROOT / "lab")))}
    return subprocess.run(
        [sys.executable, "-S", *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_tidings_does_not_import_spark() -> None:
    program = (
        "import sys, tidings, tidings.cli; print([name for name in sys.modules if name.startswith(('pys', 'pya'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_everything_else_works_without_it(bare: Path, tmp_path: Path) -> None:
    """Embedded, served and simulated."""
    program = f"import tidings; print(tidings.open({str(tmp_path / 'data')!r}, client_id='a').put('news', 'x').offset)"
    done = python(bare, "-c", program)
    assert done.stdout.strip() == "0", done.stderr
    done = python(bare, "-c", TRAFFIC, str(tmp_path / "served"))
    assert done.stdout.splitlines() == ["hello", "[]"], done.stderr
    done = python(bare, "-m", "tidings", "simulate", "--seeds", "2")
    assert done.returncode == 0, done.stderr
    for command in ("bench", "doctor", "demo"):
        assert python(bare, "-m", "tidings", command, "--help").returncode == 0


@pytest.mark.parametrize("command", ON_SPARK, ids=" ".join)
def test_what_needs_it_says_what_to_install(bare: Path, command: list[str]) -> None:
    done = python(bare, "-m", "tidings", *command)
    assert done.returncode == 1
    assert re.fullmatch(r"[^\n]* not installed: pip install '\.\[spark\]'[^\n]*\n", done.stderr)


def test_registering_says_what_to_install(bare: Path) -> None:
    done = python(bare, "-c", "import tidings.spark; tidings.spark.register(None)")
    assert f"InvalidRequest: {INSTALL}" in done.stderr


@pytest.mark.parametrize("command", ON_SPARK, ids=" ".join)
def test_a_machine_without_java(tmp_path: Path, command: list[str]) -> None:
    """One sentence and exit 1, before anything is started."""
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tidings", *command], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, f"{JAVA}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_a_fresh_environment_without_extras(tmp_path: Path) -> None:
    """As `pip install .` makes it: what is locked without the extras, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    interpreter = tmp_path / "venv" / "bin" / "python"
    install = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--require-hashes", "--no-deps", "-r", str(ROOT / "requirements.lock")], check=True)
    subprocess.run([*install, "--no-deps", str(ROOT)], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = TRAFFIC.replace('"-S", ', "")
    done = subprocess.run(
        [str(interpreter), "-c", program, str(tmp_path / "data")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["hello", "[]"], done.stderr
    done = subprocess.run(
        [str(interpreter), "-m", "tidings", "bench", "spark"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, f"{INSTALL}\n")


@pytest.mark.timeout(300)
def test_a_java_that_does_not_start(tmp_path: Path) -> None:
    """One sentence, with what Java said last; nothing of what Spark says on its way."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'Picked up nothing' >&2\necho 'Error: there is no memory' >&2\nexit 1\n")
    java.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "tidings", "simulate", "--sweep", "--seeds", "1", "--master", "local[1]"],
        env=os.environ | {"JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert re.fullmatch(r"Spark did not start \(.*\): .*Error: there is no memory.*\n", done.stderr), done.stderr
