"""The experiments by name, in the order in which the document has them, and then ours."""

from __future__ import annotations

from tidings.experiments.experiment import Experiment
from tidings.experiments.groups import GROUPS
from tidings.experiments.hyparview import HYPARVIEW
from tidings.experiments.multicast import CHORD, LOAD, RELIABILITY
from tidings.experiments.plumtree import PLUMTREE
from tidings.experiments.ring import LOOKUPS_EXPERIMENT, TOPICS

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (LOAD, CHORD, TOPICS, RELIABILITY, HYPARVIEW, PLUMTREE, LOOKUPS_EXPERIMENT, GROUPS)
}
"""Agreement of replicas, the document's last one, waits for replica groups."""
