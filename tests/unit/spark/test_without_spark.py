"""tidings works where Spark is not installed, and says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import tidings

SITE = Path(msgspec.__file__).parents[1]
SOURCE = Path(tidings.__file__).parents[1]
LEFT_OUT = ("pyspark", "py4j", "pyarrow")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The installed packages without those of the extra."""
    folder = tmp_path / "site"
    folder.mkdir()
    for each in SITE.iterdir():
        if not each.name.lower().startswith(LEFT_OUT):
            (folder / each.name).symlink_to(each)
    return folder


def python(bare: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(bare), str(SOURCE)))}
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
    program = f"import tidings; print(tidings.open({str(tmp_path / 'data')!r}, client_id='a').put('news', 'x').offset)"
    done = python(bare, "-c", program)
    assert done.stdout.strip() == "0", done.stderr
    assert python(bare, "-m", "tidings", "bench", "--help").returncode == 0


def test_what_needs_it_says_what_to_install(bare: Path) -> None:
    done = python(bare, "-m", "tidings", "bench", "spark")
    assert done.returncode == 1
    assert 'pip install "tidings[spark]"' in done.stderr
    done = python(bare, "-c", "import tidings.spark; tidings.spark.register(None)")
    assert "InvalidRequest: PySpark is not installed" in done.stderr
