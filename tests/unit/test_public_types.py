"""What a type checker knows of the public names: all of them, and everything that their signatures name."""

from __future__ import annotations

import builtins
import inspect
import os
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from typing import Any

import tidings

OF_THE_SHELL = {"apply_change", "perform", "start", "wake"}
"""Methods that the bus's own parts call; their operations are not public."""


def named(hint: object) -> Iterator[type]:
    """The classes of ours that a type is made of."""
    if inspect.isclass(hint) and hint.__module__.startswith("tidings"):
        yield hint
    origin = typing.get_origin(hint)
    if inspect.isclass(origin) and origin.__module__.startswith("tidings"):
        yield origin
    for part in typing.get_args(hint):
        yield from named(part)


def signatures() -> Iterator[tuple[str, object]]:
    """Every public function and method, with where it stands."""
    names = {**{name: getattr(tidings, name) for name in tidings.__all__}, "open": tidings.open}
    for name, thing in names.items():
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.isclass(thing) and not issubclass(thing, Exception):
            for each in dir(thing):
                member = inspect.getattr_static(thing, each)
                if not each.startswith("_") and each not in OF_THE_SHELL:
                    called = member.fget if isinstance(member, property) else member
                    if inspect.isfunction(called):
                        yield f"{name}.{each}", called


def test_everything_that_a_signature_names_is_public() -> None:
    public = {getattr(tidings, name) for name in tidings.__all__ if inspect.isclass(getattr(tidings, name))}
    found = dict(signatures())
    assert len(found) > 100
    missing = {}
    for where, function in found.items():
        space = {"os": os, "Callable": Callable, "Any": Any, "AsyncBus": tidings.AsyncBus, "Opening": tidings.Opening}
        hints = typing.get_type_hints(function, space | vars(sys.modules[function.__module__]))
        for kind in (kind for hint in hints.values() for kind in named(hint)):
            if kind not in public:
                missing[where] = kind
    assert missing == {}


def test_a_star_import_shadows_nothing() -> None:
    assert [name for name in tidings.__all__ if hasattr(builtins, name)] == []
    program = "from tidings import *; import builtins; assert open is builtins.open; assert Bus and AsyncBus and Value"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
