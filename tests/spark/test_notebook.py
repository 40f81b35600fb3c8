"""`examples/spark.ipynb` runs from its first cell to its last, and is kept without what it has shown (D1, D3)."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.integration.broker_process import ROOT
from tests.spark.conftest import needs_java

CELL_S_MAX = 900
"""Only a machine that hangs takes so long."""
NOTEBOOK = ROOT / "examples" / "spark.ipynb"


def read() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_kept_without_outputs() -> None:
    book = read()
    nbformat.validate(book)
    for cell in book.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)
    assert not re.search(r"/(home|root|tmp|work|Users)/", NOTEBOOK.read_text(encoding="utf-8"))


def printed(book: Any) -> str:
    return "".join(output.get("text", "") for cell in book.cells if cell.cell_type == "code" for output in cell.outputs)


@needs_java
@pytest.mark.timeout(2 * CELL_S_MAX)
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream misses nothing and doubles nothing, and no file is left."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT))))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Those of Jupyter's own modules.
        from nbclient import NotebookClient

        book = read()
        client = NotebookClient(
            book, timeout=CELL_S_MAX, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
        )
        client.execute()
    shown = printed(book)
    assert "1362 of 1362" in shown
    assert re.search(r"\|1362\|\s+1362\|", shown)
    assert re.search(r"\|\s*attic\|", shown)
    assert not [each for each in tmp_path.glob("tidings-*") if each.is_dir()]
