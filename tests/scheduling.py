"""Which tests go to one worker together: those that share something that takes long to start.

With `--dist loadgroup`, whichever worker is free takes the next test, or the next group of tests. xdist would find the
groups by a mark, but what it adds to the names of marked tests is lost with pytest 9.2.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark/"
"""Its tests share a session, but for those whose programs start sessions of their own."""
HAVE_PROGRAMS = frozenset(
    f"{SPARK}test_{name}.py" for name in ("bench", "cluster", "commands", "demo", "kills", "notebook")
)

SHARING = frozenset(
    {
        "tests/spark/test_cluster.py",
        "tests/spark/test_commands.py",
        "tests/integration/test_folder_roles.py",
        "tests/integration/test_section_seven.py",
        "tests/integration/test_web.py",
        "tests/unit/experiments/test_experiments.py",
    }
)
"""Files whose tests share what a fixture of the module has started or computed."""


def group_of(test: str) -> str:
    """What a test belongs to; a test that shares nothing is a group of its own."""
    path = test.partition("::")[0]
    if path.startswith(SPARK) and path not in HAVE_PROGRAMS:
        return SPARK
    return path if path in SHARING else test


class Scheduling(LoadScopeScheduling):
    """The largest groups begin first, and all else follows in its order."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
