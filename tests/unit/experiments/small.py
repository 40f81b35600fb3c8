"""Every experiment in small: the same runs for the tests with and without Spark."""

from __future__ import annotations

from tidings_lab.experiments.experiment import Choice

SMALL = {
    "load": Choice(nodes=(20,), seeds=1),
    "chord": Choice(nodes=(10, 30), seeds=1),
    "topics": Choice(nodes=(10, 100), seeds=2),
    "reliability": Choice(nodes=(20, 100), seeds=1),
    "hyparview": Choice(nodes=(60,), shares=(0.2, 0.5), seeds=2),
    "plumtree": Choice(nodes=(60,), seeds=1),
    "lookups": Choice(nodes=(64,), seeds=1),
    "groups": Choice(nodes=(10, 40), seeds=1),
    "service-simulated": Choice(nodes=(10,), seeds=1, messages=(2, 20)),
}
