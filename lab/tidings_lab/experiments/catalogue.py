"""The experiments by name, in the order in which the document has them, and then ours."""

from __future__ import annotations

from tidings_lab.experiments.experiment import Experiment
from tidings_lab.experiments.groups import GROUPS
from tidings_lab.experiments.hyparview import HYPARVIEW
from tidings_lab.experiments.multicast import CHORD, LOAD, RELIABILITY
from tidings_lab.experiments.plumtree import PLUMTREE
from tidings_lab.experiments.ring import LOOKUPS_EXPERIMENT, TOPICS
from tidings_lab.experiments.service import SERVICE_SIMULATED
from tidings_lab.experiments.service_processes import SERVICE

SIMULATED = (LOAD, CHORD, TOPICS, RELIABILITY, HYPARVIEW, PLUMTREE, LOOKUPS_EXPERIMENT, GROUPS, SERVICE_SIMULATED)

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in SIMULATED}
"""Those whose runs are functions of their points, and may run anywhere."""

WITH_PROCESSES: dict[str, Experiment] = {SERVICE.name: SERVICE}
"""Those that measure this machine: their runs start processes here, one run after another."""
