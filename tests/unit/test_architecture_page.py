"""docs/architecture.md says what the code does: its packages, their imports, and the way of a put and of a get.

What is compared with the code are the table of packages, every path of a file, and every name in backticks in the two
sections about the way of a message. Such a name has to be defined in one of the files that its item names. Those of
the numbered lists are also watched at work.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

import tidings
from tests.unit.test_import_directions import ALLOWED, LAB, MODULES, NOUNS, SOURCE, SOURCES, imports, layer_of
from tidings.journal.disk import RealDisk
from tidings.journal.journal import Journal
from tidings.node.clock import Clock
from tidings.node.engines import lone_engine
from tidings.node.loop import Loop
from tidings.settings import BrokerSettings, JournalSettings, NodeSettings
from tidings.transport.router import Router

PAGE = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
IN_PART = " in part"
PUT, GET = "The way of a put", "The way of a get"


def section(page: str, title: str) -> str:
    """The text under a heading, up to the next one of its rank."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no section {title!r}"
    return found[1]


# The packages.


class Row(NamedTuple):
    name: str
    purpose: str
    imports: dict[str, bool]
    """Whether it is only in part, for each package."""


def rows(page: str) -> list[Row]:
    """The table of the packages, in its order."""
    found = []
    for line in section(page, "The packages").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and line.startswith("| `"):
            listed = [entry.strip() for entry in cells[2].split(",") if entry.strip()]
            found.append(
                Row(
                    cells[0].strip("`"),
                    cells[1],
                    {entry.removesuffix(IN_PART).strip("`"): entry.endswith(IN_PART) for entry in listed},
                )
            )
    return found


def on_disk() -> list[str]:
    """Every package and module directly under src/tidings, and every package of the lab."""
    packages = [path.parent.name for path in SOURCE.glob("*/__init__.py")]
    lab = [f"{LAB.name}.{path.parent.name}" for path in LAB.glob("*/__init__.py")]
    return sorted([*packages, *(path.stem for path in SOURCE.glob("*.py")), *lab])


def imported(sources: dict[str, str]) -> dict[str, dict[str, bool]]:
    """What each package imports of the others, but the nouns; and whether the rules let it do so only in part."""
    found: dict[str, dict[str, bool]] = {}
    for module, source in sources.items():
        package = layer_of(module)
        known = found.setdefault(package, {})
        for _, name in imports(source, MODULES):
            top, _, rest = name.partition(".")
            other = layer_of(name if top == LAB.name else rest) or "__init__"
            if top in ("tidings", LAB.name) and other != package and other not in NOUNS:
                known[other] = ("" if other == "__init__" else other) not in ALLOWED[package]
    return found


@cache
def imported_now() -> dict[str, dict[str, bool]]:
    return imported(SOURCES)


def faults(page: str, real: dict[str, dict[str, bool]] | None = None) -> list[str]:
    """What the table says and the code does not, or the other way round."""
    real = imported_now() if real is None else real
    table = rows(page)
    found = []
    names = [row.name for row in table]
    found += [f"{name} has no row" for name in on_disk() if name not in names]
    found += [
        f"{name} has a row and is not there, or has two" for name in names if on_disk().count(name) != names.count(name)
    ]
    above: dict[str, None] = {}
    for row in table:
        if row.imports != real.get(row.name):
            found.append(f"{row.name} imports {real.get(row.name)}, and the page says {row.imports}")
        found += [f"{row.name} imports {other}, which stands below it" for other in row.imports if other not in above]
        if not row.purpose:
            found.append(f"nothing is said about {row.name}")
        above[row.name] = None
    return found


def test_the_table_has_every_package_with_what_it_imports() -> None:
    assert faults(PAGE) == []


def line_of(name: str) -> str:
    return next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))


@pytest.mark.parametrize("name", on_disk())
def test_a_missing_row_is_noticed(name: str) -> None:
    assert faults(PAGE.replace(f"{line_of(name)}\n", ""))


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("wire", "`protocols`", "`protocols`, `journal`"),  # One that is not there.
        ("wire", "| `protocols` |", "| |"),  # One that is there.
        ("journal", "`boot`", "`boot`, `settings`"),  # A noun, which is left out.
        ("peer", "`node` in part", "`node`"),
        ("transport", "`wire`", "`wire` in part"),
    ],
)
def test_a_wrong_import_is_noticed(name: str, before: str, after: str) -> None:
    wrong = line_of(name).replace(before, after)
    assert wrong != line_of(name)
    assert faults(PAGE.replace(line_of(name), wrong))


def test_a_new_import_is_noticed() -> None:
    assert faults(PAGE, imported({**SOURCES, "wire.fake": "from tidings.journal import segment"}))


# The files.


def paths(text: str) -> list[str]:
    """Every file and folder of the package that a text names, as a path from src/tidings."""
    own = "|".join(re.escape(name) for name in on_disk())
    return re.findall(rf"(?<![\w/.])((?:{own})/[\w/]*(?:\.py)?|(?:{own})\.py)", text)


def test_every_file_that_is_named_exists() -> None:
    named = paths(PAGE)
    assert len(named) > 50
    assert [path for path in named if not (SOURCE / path).exists()] == []


# The way of a message.


def items(text: str) -> list[str]:
    """The items of lists, and the paragraphs."""
    return [item for item in re.split(r"\n(?=\d+\. |- )|\n\n", text) if item.strip()]


def steps(title: str) -> list[str]:
    """The numbered items of a section."""
    return [item for item in items(section(PAGE, title)) if re.match(r"\d+\. ", item)]


def find(name: str, modules: Iterable[str]) -> Any:
    """What a dotted name means in the first of some files that defines it, or None."""
    first, *rest = name.split(".")
    for path in modules:
        module = "tidings." + path.removesuffix(".py").replace("/", ".")
        found: Any = getattr(importlib.import_module(module), first, None)
        if getattr(found, "__module__", None) == module:  # And not only imported there.
            for part in rest:
                found = getattr(found, part, None)
            return found
    return None


def named(item: str) -> dict[str, Any]:
    """The functions and classes in backticks that an item names; None for those that are not in its files."""
    quoted = re.findall(r"`([^`]+)`", item)
    modules = [path for path in quoted if path.endswith(".py")]
    names = [name for name in quoted if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", name) and name not in modules]
    return {name: find(name, modules) for name in names}


@pytest.mark.parametrize("item", [item for title in (PUT, GET) for item in items(section(PAGE, title))])
def test_what_is_named_on_the_way_of_a_message_exists(item: str) -> None:
    assert [name for name, found in named(item).items() if found is None] == []


@pytest.mark.parametrize(
    "item",
    [
        "1. `Bus.putt` (`client/bus.py`) is misspelt.",
        "1. `Bus.put` (`client/session.py`) is elsewhere.",
        "1. `Bus.put` is nowhere.",
        "1. `Session` (`client/bus.py`) is only imported there.",
    ],
)
def test_a_name_that_does_not_exist_is_noticed(item: str) -> None:
    assert None in named(item).values()


def test_the_lists_are_found() -> None:
    for title, first, last in ((PUT, "Bus.put", "Receipt"), (GET, "Bus.get", "Message")):
        found = steps(title)
        assert [int(item.partition(".")[0]) for item in found] == list(range(1, len(found) + 1))
        assert len(found) > 5 and first in named(found[0]) and last in named(found[-1])


class Watch:
    """Takes down which functions of the package are called, in all threads that begin while it watches."""

    def __init__(self) -> None:
        self.called: set[CodeType] = set()

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            self.called.add(frame.f_code)

    def __enter__(self) -> Watch:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def saw(self, what: Any) -> bool:
        """Whether a function was called; a class need only exist."""
        if inspect.isclass(what):
            return True
        return what.__code__ in self.called


def watched(folder: Path, use: Callable[[tidings.Bus], None]) -> Watch:
    """What is called while a client uses a broker over a socket."""
    with Watch() as watch:
        disk = RealDisk(folder)
        engine = lone_engine(BrokerSettings(), Journal.open(disk, JournalSettings()))
        engine.recover()
        router = Router(NodeSettings(bind="tcp://127.0.0.1:*"), BrokerSettings().batch_bytes_max)
        loop = Loop(engine, router, NodeSettings(), Clock())
        thread = threading.Thread(target=loop.run)
        thread.start()
        try:
            with tidings.connect(router.address, "ann", timeout=60.0) as bus:
                use(bus)
        finally:
            loop.stop()
            thread.join()
            disk.close()
    return watch


def put(bus: tidings.Bus) -> None:
    assert bus.put("news", "hello").offset == 0


def get(bus: tidings.Bus) -> None:
    bus.subscribe("news")
    bus.put("news", "hello")
    message = bus.get("news", timeout=60.0)
    assert message is not None and message.text == "hello"
    assert bus.get("news") is None
    bus.put("news", "more")  # Sent to a stream that is open.
    assert bus.get("news", timeout=60.0) is not None


@pytest.mark.parametrize(("title", "use"), [(PUT, put), (GET, get)])
def test_what_the_steps_name_is_called(title: str, use: Callable[[tidings.Bus], None], tmp_path: Path) -> None:
    watch = watched(tmp_path, use)
    wanted = {name: found for item in steps(title) for name, found in named(item).items()}
    assert [name for name, found in wanted.items() if not watch.saw(found)] == []


def test_a_step_that_is_not_taken_is_noticed(tmp_path: Path) -> None:
    watch = watched(tmp_path, put)
    assert not watch.saw(find("Bus.get", ["client/bus.py"]))
