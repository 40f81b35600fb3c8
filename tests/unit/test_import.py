"""`import tidings` is cheap: what a name needs is imported when the name is first used."""

from __future__ import annotations

import ast
import json
import rlcompleter
import subprocess
import sys
from pathlib import Path

import pytest

import tidings

CHEAP = {"tidings", "tidings.errors"}
"""All that `import tidings` may load of the package."""

NEVER = {
    *("asyncio", "concurrent.futures", "hashlib", "logging", "multiprocessing", "msgspec", "numpy", "pathlib"),
    *("pyarrow", "pyspark", "socket", "ssl", "threading", "tomllib", "zlib_ng", "zmq"),
}
"""What `import tidings` does not load of others."""

CLIENT_NEVER = {
    *("asyncio", "concurrent.futures", "multiprocessing", "numpy", "prompt_toolkit", "pyarrow", "pyspark", "rich"),
    *("ssl", "zmq", "tidings.client.aio", "tidings.journal", "tidings.node", "tidings.simulator"),
}
"""What the blocking client does not load before it connects."""


def loaded_by(program: str) -> set[str]:
    """The modules that a program adds to those with which Python has started."""
    text = (
        f"import sys; before = set(sys.modules)\n{program}\nloaded = set(sys.modules) - before\n"
        "import json; print(json.dumps(sorted(loaded)))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_the_package_loads_its_errors_and_nothing_else() -> None:
    loaded = loaded_by("import tidings")
    assert {name for name in loaded if name.startswith("tidings")} == CHEAP
    assert loaded & NEVER == set()


def test_a_blocking_client_loads_no_event_loop_no_socket_and_no_broker() -> None:
    loaded = loaded_by("import tidings; tidings.connect")
    assert "tidings.client.bus" in loaded
    assert loaded & CLIENT_NEVER == set()


def test_what_is_watched_is_noticed() -> None:
    loaded = loaded_by("import tidings, asyncio, zmq, tidings.client.aio")
    assert {"asyncio", "ssl", "zmq", "tidings.client.aio", "msgspec", "hashlib"} <= loaded


def test_every_public_name_has_a_home() -> None:
    """mypy reads the imports that never run, Python the table: both say the same."""
    tree = ast.parse(Path(tidings.__file__).read_text(encoding="utf-8"))
    for_types = {
        (found.module, name.name)
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for found in block.body
        if isinstance(found, ast.ImportFrom) and str(found.module).startswith("tidings")
        for name in found.names
    }
    homes = {(home, name) for home, names in tidings._HOMES.items() for name in names}
    assert homes == for_types
    assert {name for _, name in homes} < set(tidings.__all__)


def test_names_are_found_by_a_star_and_by_dir() -> None:
    program = (
        "from tidings import *\nimport tidings\nprint([name for name in tidings.__all__ if name not in globals()])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert set(tidings.__all__) <= set(dir(tidings))


def test_names_are_completed_before_they_are_used() -> None:
    program = "import tidings, rlcompleter\nprint(rlcompleter.Completer(vars()).complete('tidings.conn', 0))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tidings.connect")
    assert rlcompleter.Completer({"tidings": tidings}).complete("tidings.conn", 0) is not None


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tidings' has no attribute 'conect'"):
        tidings.conect  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError):
        from tidings import conect  # type: ignore[attr-defined]  # noqa: F401
