"""`tidings simulate`: the whole system in made-up worlds, one for each seed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tidings.cli.output import print_json
from tidings.simulator.many import run_many
from tidings.simulator.mutants import MUTANTS
from tidings.simulator.run import WORLDS, Result
from tidings.simulator.run import run as run_seed

HELP = """\
Runs clients, broker and journal in virtual time, on a network that loses, delays and reorders and on a disk that
tears and forgets, and checks that nothing acknowledged is lost and nothing comes twice. A seed decides everything
that happens: the same seed is the same run. Exits with 1 when a run breaks an invariant, and says how to replay it.
"""

EXAMPLES = """\
  tidings simulate --seeds 1000
  tidings simulate --seeds 1000 --first-seed 5000 --jobs 4
  tidings simulate --seed 42 --trace                # one run, line by line
  tidings simulate --seeds 500 --mutant skip-sync   # with a planted bug, which must be found
  tidings simulate --world groups --seeds 1000      # members that share the work of a topic
  tidings simulate --world stages --seeds 1000      # queries that write in stages, and readers of ranges
  tidings simulate --world paxos --seeds 1000       # replicas that agree on one log
  tidings simulate --mutants                        # the planted bugs
"""

FAILURES_SHOWN_MAX = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--world", choices=WORLDS, help="publishers and subscribers (topics, the default), groups, stages, or paxos"
    )
    parser.add_argument("--seeds", metavar="N", type=_count, default=100, help="how many seeds to run (default: 100)")
    parser.add_argument("--first-seed", metavar="K", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--seed", metavar="S", type=int, help="run only this one")
    parser.add_argument("--trace", action="store_true", help="print what happens, line by line; with --seed")
    parser.add_argument("--mutant", metavar="NAME", choices=sorted(MUTANTS), help="plant a bug first")
    parser.add_argument("--mutants", action="store_true", help="list the bugs that can be planted")
    parser.add_argument(
        "--jobs", metavar="N", type=_count, default=os.cpu_count() or 1, help="processes (default: one for each core)"
    )
    parser.add_argument("--all", action="store_true", help="go on after a failure")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each failure, and one at the end")


def run(arguments: argparse.Namespace) -> int:
    if arguments.trace and arguments.seed is None:
        arguments.usage_error("--trace shows one run: name it with --seed")
    _choose_world(arguments)
    if arguments.mutants:
        return _list_mutants(arguments.json)
    if arguments.seed is not None:
        return _run_one(arguments)
    return _run_all(arguments)


def _choose_world(arguments: argparse.Namespace) -> None:
    """A planted bug has its world; without one it is that of the topics."""
    wanted = MUTANTS[arguments.mutant].world if arguments.mutant is not None else arguments.world or "topics"
    if arguments.world not in (None, wanted):
        arguments.usage_error(f"{arguments.mutant} is a bug of the world {wanted!r}: leave --world out")
    arguments.world = wanted


def _run_one(arguments: argparse.Namespace) -> int:
    result = run_seed(arguments.seed, arguments.trace, arguments.mutant, arguments.world)
    if arguments.trace:
        for line in result.trace:
            print(line)
    if arguments.json:
        print_json(_fields(result))
    elif result.invariant is None:
        who = "replicas" if result.world == "paxos" else "broker"
        print(
            f"Seed {result.seed} holds: {result.events} events in {result.virtual_ms / 1000:.1f} s of virtual time, "
            f"{result.lives} lives of the {who}, trace {result.trace_hash}"
        )
    else:
        _tell_failure(result, arguments.mutant)
    return 0 if result.invariant is None else 1


def _run_all(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    count, failed, events = 0, 0, 0
    results = run_many(arguments.first_seed, arguments.seeds, arguments.jobs, arguments.mutant, arguments.world)
    for result in _with_progress(results, arguments.seeds):
        count += 1
        events += result.events
        if result.invariant is not None:
            failed += 1
            if arguments.json:
                print_json(_fields(result))
            elif failed <= FAILURES_SHOWN_MAX:
                _tell_failure(result, arguments.mutant)
            if not arguments.all:
                break
    seconds = time.monotonic() - began
    if arguments.json:
        print_json({"seeds": count, "failed": failed, "events": events, "seconds": round(seconds, 3)})
    else:
        outcome = "every invariant held" if not failed else f"{failed} broke an invariant"
        print(f"{count} seeds in {seconds:.1f} s, {count / seconds:.0f} seeds/s, {events} events: {outcome}")
    return 1 if failed else 0


def _with_progress(results: Iterator[Result], total: int) -> Iterator[Result]:
    """The same results, with a bar on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from results
        return
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("seeds", total=total, speed="")
        began = time.monotonic()
        for number, result in enumerate(results, 1):
            progress.update(task, completed=number, speed=f"{number / (time.monotonic() - began):.0f}/s")
            yield result


def _tell_failure(result: Result, mutant: str | None) -> None:
    print(f"Seed {result.seed} breaks an invariant: {result.invariant}", file=sys.stderr)
    print(f"  {result.text}", file=sys.stderr)
    planted = f" --mutant {mutant}" if mutant is not None else ""
    if mutant is None and result.world != "topics":
        planted = f" --world {result.world}"
    print(f"  replay: tidings simulate --seed {result.seed}{planted} --trace", file=sys.stderr)


def _fields(result: Result) -> dict[str, object]:
    return {name: getattr(result, name) for name in result.__struct_fields__ if name != "trace"}


def _list_mutants(as_json: bool) -> int:
    width = max(map(len, MUTANTS))
    for mutant in MUTANTS.values():
        if as_json:
            print_json({"name": mutant.name, "what": mutant.what, "invariants": list(mutant.rules)})
        else:
            print(f"{mutant.name:{width}}  {mutant.what}")
    return 0


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
