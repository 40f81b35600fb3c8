"""The simulations of the bare overlay by their names, for `tidings simulate --world`.

`overlay-NAME` is the scenario NAME beside this module, `ring-churn` a Chord ring whose members come and go,
`ring-multicast` Scribe over Chord. `tidings.simulator.worlds` finds the table by its entry point.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidings.simulator.run import Broken, Result, outcome
from tidings.simulator.worlds import RunSeed
from tidings_lab.simulated_overlay import scenario
from tidings_lab.simulated_overlay.chord.churn import Churn, draw_plan
from tidings_lab.simulated_overlay.chord.multicast import Multicast, draw_multicast
from tidings_lab.simulated_overlay.run import Run
from tidings_lab.simulated_overlay.world import World, without_collection

OVERLAY, RING = "overlay-", "ring-"

Make = Callable[[int, bool], tuple[World, Callable[[], Broken]]]
"""Gives the world of a seed, with a trace if that is wanted, and what lets everything happen in it."""


def _overlay(name: str) -> Make:
    def make(seed: int, trace: bool) -> tuple[World, Callable[[], Broken]]:
        under_way = Run(scenario.load(name), seed, trace)

        def happen() -> Broken:
            with without_collection():
                under_way.run()
            return None, ""

        return under_way.world, happen

    return make


def _churn(seed: int, trace: bool) -> tuple[World, Callable[[], Broken]]:
    churn = Churn(draw_plan(seed), trace=trace)

    def happen() -> Broken:
        result = churn.run()
        return result.rule, result.text

    return churn.world, happen


def _multicast(seed: int, trace: bool) -> tuple[World, Callable[[], Broken]]:
    multicast = Multicast(draw_multicast(seed), trace)

    def happen() -> Broken:
        row = multicast.run()
        return row.rule, row.text

    return multicast.world, happen


def _run(name: str, make: Make) -> RunSeed:
    """Lets everything happen in the world of a seed, and says what came of it."""

    def run(seed: int, trace: bool) -> Result:
        world, happen = make(seed, trace)
        invariant, text = outcome(happen)
        result = Result(seed, "", world.now_ms, world.delivered, 0, invariant, text, (), name)
        if world.trace is None:
            return result
        if invariant is not None:
            world.trace.add(world.now_us, "world", f"BROKEN {invariant}: {text}")
        return msgspec.structs.replace(result, trace_hash=world.trace.hash, trace=tuple(world.trace.lines))

    return run


_MADE: dict[str, Make] = {
    **{OVERLAY + path.stem: _overlay(path.stem) for path in sorted(scenario.FOLDER.glob("*.toml"))},
    RING + "churn": _churn,
    RING + "multicast": _multicast,
}

WORLDS: dict[str, RunSeed] = {name: _run(name, make) for name, make in _MADE.items()}
