"""Java takes Spark's classes from the archive that `make test` has made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import ARCHIVE


@pytest.mark.skipif(not ARCHIVE.exists(), reason="there is no archive: `make test` makes it")
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not say what a process has mapped")
def test_the_session_has_its_classes_from_the_archive(spark: Any) -> None:
    java = spark.sparkContext._gateway.proc.pid
    assert str(ARCHIVE) in Path(f"/proc/{java}/maps").read_text()
