"""`tidings simulate --sweep`: every seed is run, and the results become a table."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

from tidings.cli.output import print_json
from tidings.cli.progress import progress_bar
from tidings.cli.simulate import FAILURES_SHOWN_MAX, conclude, tell_failure
from tidings_lab.commands.engines import engine_for, lake_folder
from tidings_lab.experiments.simulations import seeds_sweep, sum_up


def run(arguments: argparse.Namespace) -> int:
    """`tidings simulate` has checked the arguments and chosen the first seed and the world."""
    sweep = seeds_sweep(arguments.first_seed, arguments.seeds, arguments.world, arguments.mutant)
    folder = None if arguments.lake is None else lake_folder(arguments.lake, "simulations", sweep.name)
    with engine_for(arguments.master, arguments.jobs, arguments.tasks) as engine:
        began = time.monotonic()  # Spark takes some seconds to start, whatever it is to do.
        with progress_bar("seeds", arguments.seeds) as tell:
            tables = engine.run(sweep, folder, tell)
        seconds = time.monotonic() - began
        with contextlib.closing(tables):
            summary = sum_up(tables, FAILURES_SHOWN_MAX)
    for failure in summary.failures:
        if arguments.json:
            print_json(failure)
        elif "error" in failure:
            print(f"Running {failure['parameters']} raised {failure['error']}", file=sys.stderr)
        else:
            tell_failure(failure["seed"], failure["invariant"], failure["text"], failure["replay"])
    if not arguments.json:
        for rule in summary.rules:
            print(f"{rule['seeds']} broke: {rule['invariant']}; the first is seed {rule['first_seed']}")
        if folder is not None:
            print(f"The table is in {folder}/runs")
    failed = summary.broken + summary.raised
    count = summary.seeds + summary.raised
    return conclude(arguments, count, failed, summary.events, seconds, {arguments.world: count})
