"""Commands that come with tidings-lab: benchmarks, experiments, sweeps and the demonstration.

They are found by their entry points.
"""

from __future__ import annotations

from typing import Any

from tidings.errors import InvalidRequest

GROUP = "tidings.commands"


def load(name: str, what: str) -> Any:
    """The module of a command. InvalidRequest says that `what` needs the lab, where that is not installed."""
    from importlib.metadata import entry_points

    for offered in entry_points(group=GROUP, name=name):
        return offered.load()
    raise missing(what)


def missing(what: str) -> InvalidRequest:
    """What to raise where the lab is not installed.

    >>> str(missing("tidings bench"))
    'tidings bench needs tidings-lab, which is not installed: pip install ./lab in a checkout of tidings.'
    """
    advice = "pip install ./lab in a checkout of tidings"
    return InvalidRequest(f"{what} needs tidings-lab, which is not installed: {advice}.")
