"""`tidings bench`: what tidings does here, beside what this machine could do at most."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tidings.errors import InvalidRequest

HELP = """\
Measures tidings with brokers and clients of its own, beside bare loops on the same machine: write and
fdatasync, a ZeroMQ echo, a memory copy. Ratios to these survive a slower machine; figures alone do not.
Scenarios: publish, consume, put, many, fanout, groups, sockets, storage, backlog (default: all of these). Only when
named: group, ring, overlay, spark and spark-rows.
"""

EXAMPLES = """\
  tidings bench --quick                        # a minute or two
  tidings bench publish consume
  tidings bench --storage                      # a broker on a storage server beside one with its own journal
  tidings bench --json figures.json --plot figures.png
  tidings bench put --json - | jq '.figures[] | {name, value, ratio}'
  tidings bench group                          # three replicas beside a single broker
  tidings bench ring                           # a ring of three groups of three beside one group
  tidings bench overlay                        # 10,000 simulated nodes: three minutes of one core
  tidings bench spark                          # needs the extra `spark` and Java
  tidings bench spark --large                  # and the cost per row of 50 million: minutes, 2 GB
  tidings bench --data /mnt/disk --strict      # exit 1 if a target is missed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenarios", metavar="SCENARIO", nargs="*", help="what to measure (default: everything)")
    parser.add_argument("--storage", action="store_true", help="measure a storage server; short for `bench storage`")
    parser.add_argument("--large", action="store_true", help="measure many rows in Spark; short for `bench spark-rows`")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, a million messages instead of ten")
    parser.add_argument(
        "--json", metavar="FILE", help="write everything that was measured as JSON; - for standard output"
    )
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw figures against targets: .png, .svg or .pdf")
    parser.add_argument(
        "--page", metavar="FILE", type=Path, help="put the figures into a Markdown page, between its bench markers"
    )
    parser.add_argument("--data", metavar="DIR", type=Path, help="a folder for the journals, on the disk to measure")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit 1 if a target is missed, or could not be judged because other programs used the machine",
    )
    parser.add_argument(
        "--scale", metavar="FACTOR", type=float, default=1.0, help="multiply the work by this; 0.01 for a quick try"
    )


def run(arguments: argparse.Namespace) -> int:
    from tidings import __version__
    from tidings_lab.bench import plot, report, scenarios, spark
    from tidings_lab.bench.plan import plan as make_plan
    from tidings_lab.bench.stage import IN_MEMORY, default_folder, filesystem_of

    asked = [*arguments.scenarios]
    asked += [name for name, wanted in (("storage", arguments.storage), ("spark-rows", arguments.large)) if wanted]
    names = list(dict.fromkeys(asked)) or list(scenarios.SCENARIOS)
    known = scenarios.SCENARIOS | scenarios.ON_REQUEST
    for name in names:
        if name not in known:
            arguments.usage_error(f"there is no scenario {name!r}, only {', '.join(known)}")
    if {"spark", "spark-rows"} & set(names):
        spark.check()
    plan = make_plan(arguments.quick, arguments.scale)
    if arguments.plot is not None:
        plot.check_target(arguments.plot)
    if arguments.page is not None:
        report.put_between_marks(arguments.page.read_text(), "")
    folder: Path = arguments.data if arguments.data is not None else default_folder()
    if not folder.is_dir():
        raise InvalidRequest(f"{folder} is not a folder: create it first, or name another with --data.")
    filesystem = filesystem_of(folder)
    if filesystem in IN_MEMORY:
        print(
            f"{folder} is memory and not a disk ({filesystem}), so syncs are free there: name a disk with --data.",
            file=sys.stderr,
        )
    steps = {"machine": 1} | {name: known[name].steps(plan) for name in names}
    with report.progress(steps, sys.stderr) as notice:
        results = scenarios.run(names, plan, folder, notice)
    # Anyone who takes the JSON from the output gets nothing else there.
    report.print_report(results.figures, results.limits, sys.stderr if arguments.json == "-" else sys.stdout)
    if arguments.json is not None:
        machine = {"filesystem": filesystem}
        text = report.as_json(results.figures, results.limits, plan, results.raw, machine, __version__)
        report.write_json(arguments.json, text, sys.stdout)
    if arguments.page is not None:
        figures = report.as_markdown(results.figures, results.limits)
        arguments.page.write_text(report.put_between_marks(arguments.page.read_text(), figures))
    if arguments.plot is not None:
        plot.draw(results.figures, arguments.plot)
    met = all(figure.ok for figure in results.figures if figure.target is not None)
    return 1 if arguments.strict and not met else 0
