"""Imports point one way, modules stay small, and nothing that came in is ever evaluated.

The rules are those of the architecture: pure cores know nothing of sockets, files, clocks or chance, and
only the outermost layers know everybody.
"""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "tidings"
LAB = SOURCE.parents[1] / "lab" / "tidings_lab"
"""Another distribution, which may import this one; never the other way round."""
LINES_MAX = 600

NOUNS = ("errors", "message", "settings")
"""What everybody may import."""

REPLICA = ("node.replica", "node.bodies", "node.founding", "node.file_copy", "node.snapshot_header")
"""A replica and what it is made of."""
ENGINE = ("node.alone", "node.engine", "node.engines", "node.stored")
"""The engine, and what a broker alone is made of."""
MEMBER = ("node.group", "node.identity", "node.replicated", "node.state", "node.waiting")
"""A member of a group and what it is made of, beside the replica."""
RING = ("node.ring.commits", "node.ring.engine", "node.ring.leading")
"""A node of a ring, beside the member that it is."""

ALLOWED: dict[str, tuple[str, ...]] = {
    "errors": (),
    # Which machine this is: for who writes it down, and for two who ask whether they are on the same.
    "boot": (),
    # What the system lets a process open, which the journal and the sockets share.
    "descriptors": (),
    "message": ("errors",),
    "settings": ("errors",),
    "protocols": NOUNS,
    "journal": (*NOUNS, "boot", "descriptors"),
    "wire": (*NOUNS, "protocols"),
    "transport": ("errors", "settings", "wire", "descriptors"),
    # A storage server keeps the files of a journal; a broker may use one as its disk.
    "storage": (*NOUNS, "descriptors", "transport", "journal", "wire", "protocols"),
    "node": (*NOUNS, "boot", "descriptors", "transport", "journal", "wire", "protocols", "storage.remote"),
    # A node of an overlay: it runs the stacks over ZeroMQ, and knows no journal.
    "peer": (*NOUNS, "transport", "wire", "protocols", "node.clock"),
    "client": (*NOUNS, "boot", "transport", "wire", "protocols.broker.messages", "protocols.broker.bulk"),
    # A ring as its operators see it: its nodes are asked one by one, or run as processes. "" is the public surface.
    "admin": (*NOUNS, "client", "transport", "wire", "protocols", ""),
    # The engines do no input or output of their own, and the session is pure: the simulator drives them all.
    "simulator": (*NOUNS, "journal", "wire", "protocols", "client", *ENGINE, *REPLICA, *MEMBER, *RING),
    # It does without the bus, so that a Spark task can use it alone.
    "spelling": ("errors",),
    "gateways": (*NOUNS, "client", "spelling"),
    "spark": (*NOUNS, "client", "protocols.broker.bulk", "wire.even", "spelling", ""),
    "pipeline": (*NOUNS, "client", "spark", "spelling", ""),
    # Topics to files and back; Parquet is written by what makes Arrow columns for Spark.
    "files": (*NOUNS, "client", "spark.arrow", ""),
    "console": (*NOUNS, "client", ""),
    # For the tests of programs: a broker in a thread, a clock to move, and fixtures.
    "testing": (*NOUNS, "client", "node.clock", "node.embedded", "node.thread", ""),
    "cli": (
        *NOUNS,
        *("client", "node", "storage", "simulator", "transport", "console", "spark"),
        *("gateways", "spelling", "pipeline", "files", "peer", "admin"),
        # Each member of a replica group is asked by itself, which no client does.
        *("protocols.broker.messages", "protocols.broker.operators"),
        # In which role a folder is used decides what is started on it.
        "journal.folder",
        "",
    ),
    "__main__": ("cli",),
    # What signatures name beside the client's own: types of a few arguments and results.
    "__init__": (*NOUNS, "client", "node", "protocols.broker.bulk", "protocols.broker.messages", "wire.even"),
    # The lab. What runs the stacks of a node in virtual time, as `peer` does over ZeroMQ.
    "tidings_lab.simulated_overlay": (*NOUNS, "simulator", "protocols"),
    # Bare replicas with a state of their own: the machinery of a member below its broker.
    "tidings_lab.simulated_replicas": (
        *NOUNS,
        *("simulator", "journal", "wire", "protocols"),
        *("node.replica", "node.founding", "node.identity", "node.state"),
    ),
    # A ring of processes is a trial, whose operators ask its nodes what they have applied and own.
    # The folder of a broker with which somebody tampers: the files of its journal, and the paths by which it is read.
    "tidings_lab.simulated_tampering": (*NOUNS, "simulator", "journal", "client", "node.engine"),
    "tidings_lab.simulated_service": (
        *NOUNS,
        *("simulator", "wire", "protocols", "client", "node.engine", "node.group", "node.identity", "node.replicated"),
        "tidings_lab.simulated_overlay.world",
    ),
    "tidings_lab.experiments": (
        *NOUNS,
        "client",
        "simulator",
        "peer",
        "admin",
        "protocols",
        "tidings_lab.simulated_overlay",
        "tidings_lab.simulated_service",
        "",
    ),
    "tidings_lab.bench": (
        *NOUNS,
        *("client", "gateways", "node", "storage", "journal", "wire", "protocols", "transport", "spark", "admin"),
        *("tidings_lab.experiments", ""),
    ),
    # A planted bug changes what the simulator runs.
    "tidings_lab.bugs": (
        *NOUNS,
        *("simulator", "journal", "wire", "protocols", "client"),
        *(*ENGINE, *REPLICA, *MEMBER, *RING, "node.ring.admitting", "node.ring.apart", "node.ring.apart_streams"),
        *("tidings_lab.simulated_overlay", "tidings_lab.simulated_replicas", "tidings_lab.simulated_tampering"),
    ),
    "tidings_lab.demo": (*NOUNS, "client", "pipeline", "spark", ""),
    "tidings_lab.commands": (
        *NOUNS,
        *("cli", "spark", "tidings_lab.bench", "tidings_lab.demo", "tidings_lab.experiments", ""),
    ),
}

APART = {"protocols.broker": "protocols.ring"}
"""Of two areas of one layer, the first does not know the second: a broker asks the policy that it was given."""

ZEROMQ = ("transport", "tidings_lab.bench")
"""Only the transport speaks ZeroMQ; the benchmark measures a bare echo beside it."""

IMPURE = frozenset({"asyncio", "logging", "os", "secrets", "socket", "threading", "time", "uuid", "zmq"})
"""What a pure core does not import. `random` it may import for the type of what is handed in, no more."""

FORBIDDEN_MODULES = frozenset({"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle"})
FORBIDDEN_CALLS = frozenset({"eval", "exec"})


def inside(name: str, area: str) -> bool:
    """Whether a dotted name (without `tidings.`) lies in an area."""
    return name == area or (area != "" and name.startswith(f"{area}."))


def layer_of(module: str) -> str:
    """The package directly under src/tidings, or under the lab, in which a module (without `tidings.`) lies."""
    return ".".join(module.split(".")[: 2 if inside(module, "tidings_lab") else 1])


@cache
def parsed(source: str) -> ast.Module:
    """Every module is looked at by several tests."""
    return ast.parse(source)


@cache
def imports(source: str, modules: frozenset[str]) -> list[tuple[int, str]]:
    """Every imported name with its line; `from tidings.x import y` is tidings.x.y if that is a module."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.append((node.lineno, alias.name))
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                found.append((node.lineno, "." * node.level + (node.module or "")))
            for alias in node.names:
                longer = f"{node.module}.{alias.name}"
                found.append((node.lineno, longer if longer in modules else str(node.module)))
    return found


def is_only_for_types(tree: ast.Module, line: int) -> bool:
    """Whether a line stands under `if TYPE_CHECKING:`, which no run ever executes."""
    return any(
        isinstance(node, ast.If)
        and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        and node.lineno < line <= (node.body[-1].end_lineno or 0)
        for node in ast.walk(tree)
    )


def faults(module: str, source: str, modules: frozenset[str]) -> list[str]:
    """What is wrong with a module, given as its name without `tidings.` and its text."""
    found = []
    tree = parsed(source)
    layer = layer_of(module)
    if layer not in ALLOWED:
        return [f"{module}: no rule says what {layer} may import: add one"]
    for line, name in imports(source, modules):
        where = f"{module}:{line}"
        top, _, rest = name.partition(".")
        if name.startswith("."):
            found.append(f"{where} imports relatively")
        elif top in ("tidings", "tidings_lab"):
            rest = name if top == "tidings_lab" else rest
            allowed = (*ALLOWED[layer], *(() if layer == "__init__" else (layer,)))
            if not any(inside(rest, area) for area in allowed):
                found.append(f"{where} imports {name}, which {layer} must not know")
            for area, other in APART.items():
                if inside(module, area) and inside(rest, other):
                    found.append(f"{where} imports {name}, which {area} must not know")
        elif top == "zmq" and layer not in ZEROMQ:
            found.append(f"{where} imports zmq, which only {' and '.join(ZEROMQ)} may")
        elif top in FORBIDDEN_MODULES:
            found.append(f"{where} imports {top}")
        elif layer == "protocols" and top in IMPURE and not is_only_for_types(tree, line):
            found.append(f"{where} imports {top}, and a protocol is pure")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            found.append(f"{module}:{node.lineno} calls {node.func.id}")
        if layer == "protocols" and (name := use_of_shared_rng(node)):
            found.append(f"{module}:{getattr(node, 'lineno', 0)} uses {name}, and randomness is handed in")
    lines = len(source.splitlines())
    if lines > LINES_MAX:
        found.append(f"{module} has {lines} lines, and {LINES_MAX} is the limit: split it by role")
    return found


def use_of_shared_rng(node: ast.AST) -> str | None:
    """`random.choice` and the like; `random.Random` is only a type as long as nobody calls it."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
        return None if node.attr == "Random" else f"random.{node.attr}"
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Random", "random.Random") and not node.args:
        return "an unseeded Random()"
    if isinstance(node, ast.ImportFrom) and node.module == "random":
        names = [alias.name for alias in node.names if alias.name != "Random"]
        return f"random.{names[0]}" if names else None
    return None


def sources() -> dict[str, str]:
    """The text of every module, by its name without `tidings.`; those of the lab have their whole names."""
    found = {}
    for folder, beginning in ((SOURCE, ()), (LAB, ("tidings_lab",))):
        for path in sorted(folder.rglob("*.py")):
            parts = (*beginning, *path.relative_to(folder).with_suffix("").parts)
            name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
            found[name] = path.read_text(encoding="utf-8")
    del found["tidings_lab"]  # Only a docstring: no layer.
    return found


SOURCES = sources()
MODULES = frozenset(name if inside(name, "tidings_lab") else f"tidings.{name}" for name in SOURCES)


@pytest.mark.parametrize("module", SOURCES)
def test_module(module: str) -> None:
    assert faults(module, SOURCES[module], MODULES) == []


FOR_TYPES = {
    **dict.fromkeys(("pyspark", "pyarrow", "deltalake"), "only with the extra `spark`"),
    **dict.fromkeys(("tidings.pipeline", "tidings_lab.experiments"), "need what only extras bring"),
    "matplotlib": "only with an extra",
    "prompt_toolkit": "slow to import, and only a terminal needs it",
    "tidings.gateways": "only with the extra `web`",
    **dict.fromkeys(
        ("tidings.client.aio", "tidings.client.async_soon"), "bring asyncio, which the blocking bus does without"
    ),
    "tidings.transport": "brings zmq, which an embedded bus does without, or the keys, which few clients have",
}
"""What may be imported for its types alone, and why; everything else is imported like anything."""
LATE = ("__init__", "testing", "testing.plugin")
"""What these name is imported when it is first used: they are loaded by programs that may use none of it
(`tests/unit/test_import.py`)."""


def imported_for_types(source: str) -> list[str]:
    """What stands under `if TYPE_CHECKING:`."""
    blocks = [
        node for node in parsed(source).body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    lines = {line for node in blocks for line in range(node.lineno, (node.body[-1].end_lineno or 0) + 1)}
    return [name for line, name in imports(source, MODULES) if line in lines]


def is_slow_or_optional(name: str) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in FOR_TYPES)


def test_only_what_is_slow_or_optional_is_imported_for_types_alone() -> None:
    found = {module: imported_for_types(source) for module, source in SOURCES.items() if module not in LATE}
    assert found["client"], "there is at least one such block"
    assert [(module, name) for module in found for name in found[module] if not is_slow_or_optional(name)] == []


def find_knot(sources: dict[str, str], modules: frozenset[str]) -> list[str]:
    """Modules of which each needs the next one, and the last one the first; empty if there are none."""
    graph = {
        module: {name.removeprefix("tidings.") for _, name in imports(source, modules) if name in modules}
        for module, source in sources.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_modules_form_no_knot() -> None:
    """Not even for their types: two modules that need each other are one, or lack a small interface between them."""
    assert find_knot(SOURCES, MODULES) == []


@pytest.mark.parametrize(
    "source",
    ["if TYPE_CHECKING:\n    from tidings.client.bus import Bus", "def late():\n    import tidings.client.bus"],
)
def test_planted_knot_is_reported(source: str) -> None:
    assert "client.link" in find_knot({**SOURCES, "client.link": source}, MODULES)


def test_the_package_was_found() -> None:
    assert {"errors", "message", "settings", "cli", "__init__"} <= set(SOURCES)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("protocols.fake", "import time"),
        ("protocols.fake", "def late():\n    import socket"),
        ("protocols.fake", "from os import urandom"),
        ("protocols.fake", "import random\nrandom.shuffle([])"),
        ("protocols.fake", "from random import choice"),
        ("protocols.fake", "import random\nrandom.Random()"),
        ("protocols.fake", "from tidings.wire import codec"),
        ("protocols.fake", "from tidings import wire"),
        ("protocols.fake", "import tidings"),
        ("protocols.fake", "from ..wire import codec"),
        ("protocols.broker.fake", "from tidings.protocols.ring import ownership"),
        ("protocols.broker.fake", "if TYPE_CHECKING:\n    from tidings.protocols.ring.ownership import Ownership"),
        ("wire.fake", "from tidings.journal import segment"),
        ("journal.fake", "from tidings.protocols.broker import messages"),
        ("transport.fake", "from tidings.protocols.broker.messages import Hello"),
        ("node.fake", "from tidings.client import session"),
        ("node.fake", "import zmq"),
        ("client.fake", "from tidings.protocols.broker import machine"),
        ("client.fake", "import tidings.node.loop"),
        ("gateways.fake", "from tidings.node import loop"),
        ("gateways.fake", "from tidings.transport.zeromq import DealerLink"),
        ("gateways.fake", "import zmq"),
        ("client.fake", "from tidings.gateways import sockets"),
        ("simulator.fake", "from tidings.node import loop"),
        ("simulator.fake", "from tidings.node.process import serve"),
        ("spelling.fake", "from tidings.client import connect"),
        ("client.fake", "from tidings.spelling import spell"),
        ("cli.fake", "import zmq.auth"),
        ("cli.fake", "from tidings_lab.bench import plan"),
        ("simulator.fake", "import tidings_lab.bugs"),
        ("simulator.fake", "from tidings_lab import bugs"),
        ("simulator.fake", "from tidings_lab.simulated_overlay.worlds import WORLDS"),
        ("simulator.fake", "from tidings_lab.simulated_replicas.world import PaxosWorld"),
        ("tidings_lab.simulated_overlay.fake", "from tidings.transport import peers"),
        ("tidings_lab.simulated_replicas.fake", "from tidings.node import loop"),
        ("tidings_lab.bugs.fake", "from tidings_lab.bench import plan"),
        ("tidings_lab.experiments.fake", "from tidings.node import loop"),
        ("tidings_lab.experiments.fake", "import zmq"),
        ("tidings_lab.unheard_of.fake", ""),
        ("cli.fake", "from tidings.journal import segment"),
        ("errors", "from tidings.message import Message"),
        ("unheard_of.fake", ""),
        ("cli.fake", "import pickle"),
        ("cli.fake", "eval('1')"),
        ("cli.fake", "exec('1')"),
        ("cli.fake", "\n" * (LINES_MAX + 1)),
    ],
)
def test_planted_fault_is_reported(module: str, source: str) -> None:
    known = MODULES | {"tidings.wire.codec", "tidings.protocols.broker.machine", "tidings.node.loop"}
    assert faults(module, source, frozenset(known))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("protocols.fake", "from tidings.protocols import events\nfrom tidings.errors import TidingsError"),
        ("protocols.fake", "import random\ndef shuffle(chance: random.Random) -> None: ..."),
        ("protocols.fake", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio"),
        ("protocols.ring.fake", "from tidings.protocols.broker.machine import Machine"),
        ("simulator.fake", "from tidings.node import engine\nfrom tidings.node.engine import Engine"),
        ("client.fake", "from tidings.protocols.broker import messages"),
        ("client.fake", "from tidings.protocols.broker.messages import Hello"),
        ("gateways.fake", "from tidings.client.aio import AsyncBus\nfrom tidings.gateways import fields"),
        ("cli.fake", "from tidings.gateways.sockets import SocketDoor"),
        ("transport.fake", "import zmq"),
        ("tidings_lab.bench.fake", "import zmq\nfrom tidings.node import loop\nfrom tidings_lab.bench import plan"),
        ("cli.fake", "import tidings\nfrom tidings.node.process import serve\nimport random, time"),
        ("__init__", "from tidings.client.bus import Bus\nfrom tidings.errors import TidingsError"),
    ],
)
def test_what_is_allowed_is_not_reported(module: str, source: str) -> None:
    known = MODULES | {"tidings.node.engine", "tidings.protocols.broker.messages"}
    assert faults(module, source, frozenset(known)) == []
