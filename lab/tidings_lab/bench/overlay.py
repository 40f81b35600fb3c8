"""How many messages the simulator of overlays delivers in a second of one core: the experiment `hyparview`.

Each round is a process of its own, so that none finds the memory that another left behind, and its own processor time
counts. There is no limit to compare it with: a simulation needs nothing but a processor and its caches.
"""

from __future__ import annotations

from typing import Any

from tidings_lab.bench.figures import Figure, at_least
from tidings_lab.bench.plan import Plan
from tidings_lab.bench.stage import Stage
from tidings_lab.experiments.hyparview import failure

SHARE = 0.8
SEED = 1


def steps(plan: Plan) -> int:
    """How many steps it takes."""
    return plan.rounds


def run(on: Stage) -> list[Figure]:
    """Join, publish, lose four nodes of five at once, publish again."""
    plan = on.plan
    rates: list[float] = []
    for number in range(plan.rounds):
        on.step(f"round {number + 1} of {plan.rounds}: {plan.overlay_nodes:,} nodes")
        with on.worker() as worker:
            delivered, seconds = worker.ask("overlay_failure", nodes=plan.overlay_nodes)
        rates.append(delivered / seconds)
    return [
        Figure(
            scenario="overlay",
            name=f"simulated messages, {plan.overlay_nodes:,} nodes",
            value=max(rates),
            unit="messages/s",
            target=at_least(150e3),
            samples=tuple(rates),
        )
    ]


def overlay_failure(desk: Any, nodes: int) -> tuple[int, float]:
    """The messages that one simulation delivered, and the seconds of processor time it took."""
    row = failure(nodes, SHARE, SEED)
    return row.delivered, max(row.cpu_seconds, 0.01)


OVERLAY_JOBS = (overlay_failure,)
