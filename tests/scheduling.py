"""Which tests go to one worker together, and which begin first.

Tests that share something that takes long to start go to one worker, and whichever worker is free takes the next test
or group. What takes longest begins first, so that nobody waits for it at the end: a run with `--record` has written
down how long it takes (`tests/records.py`).

With `--dist loadgroup`, xdist would find the groups by a mark, but what it adds to the names of marked tests is lost
with pytest 9.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"
"""Its tests share a session, but for those whose programs start sessions of their own."""
HAVE_PROGRAMS = frozenset(
    f"{SPARK}test_{name}.py" for name in ("bench", "cluster", "commands", "demo", "kills", "notebook")
)
SPARK_MAX = 2
"""So many workers run Spark at a time: each is several processes that keep a core busy, and gives those of Python ten
seconds to start."""

SHARING = frozenset(
    {
        "tests/spark/test_cluster.py",
        "tests/spark/test_commands.py",
        "tests/integration/test_folder_roles.py",
        "tests/integration/test_section_seven.py",
        "tests/integration/test_web.py",
        "tests/simulation/test_mutants.py",
        "tests/unit/experiments/test_experiments.py",
    }
)
"""Files whose tests share what a fixture of the module has started or computed."""

UNKNOWN_S = {SPARK: 60.0, "tests/integration/": 1.0, "tests/simulation/": 1.0}
"""How long a test takes of which nothing is written down: more than others, in these folders."""


def group_of(test: str) -> str:
    """What a test belongs to; a test that shares nothing is a group of its own."""
    path = test.partition("::")[0]
    if path.startswith(SPARK) and path not in HAVE_PROGRAMS:
        return SPARK
    return path if path in SHARING else test


def key_of(test: str) -> str:
    """Under which name its time is written down: its group, for all parameters the same."""
    return group_of(test).partition("[")[0]


def expected_s(test: str, durations_s: Mapping[str, float]) -> float:
    """How long the group of a test may take."""
    unknown_s = next((each for folder, each in UNKNOWN_S.items() if test.startswith(folder)), 0.0)
    return durations_s.get(key_of(test), unknown_s)


class Scheduling(LoadScopeScheduling):
    """Groups begin in the order of their tests, but not all that run Spark at the same time."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # It would count tests.

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        busy = sum(other is not node and self._runs_spark(other) for other in self.nodes)
        if busy >= SPARK_MAX:  # Where nothing else is left, Spark it is.
            other = (group for group in self.workqueue if not group.startswith(SPARK))
            self.workqueue.move_to_end(next(other, next(iter(self.workqueue))), last=False)
        super()._assign_work_unit(node)

    def _runs_spark(self, node: Any) -> bool:
        """Whether a worker has tests of Spark that have not ended."""
        work = self.assigned_work[node].items()
        return any(group.startswith(SPARK) and not all(tests.values()) for group, tests in work)
