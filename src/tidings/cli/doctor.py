"""`tidings doctor`: checks this machine and says what to do.

Each check returns a `Finding`: ok, warn (tidings runs, but read this) or fail (it does not).
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from tidings.cli import connection
from tidings.cli.connection import open_bus
from tidings.cli.output import print_json
from tidings.errors import TidingsError, Unavailable

HELP = """\
Checks what tidings needs: Python, libzmq with CURVE, the disk, the port, limits, the clock, and whether a broker
answers. Exits with 1 if something must be fixed.
"""

EXAMPLES = """\
  tidings doctor
  tidings doctor --data /var/lib/tidings        # test the disk that the journal will be on
  tidings doctor --bus tcp://10.0.0.1:7400      # is that broker there?
  tidings doctor --json | jq 'select(.state != "ok")'
"""

PYTHON_MIN = (3, 11)
LIBZMQ_MIN = (4, 3)
JAVA_MIN = 17
SYNCS = 40
SYNC_BYTES = 4096
SYNC_SECONDS_MAX = 3.0
SYNC_US_SUSPICIOUS = 20
SYNC_US_SLOW = 20_000
DISK_BYTES_LOW = 1 << 30
DESCRIPTORS_LOW = 1024
DESCRIPTORS_OWN = 64
YEAR_SECONDS = 31_556_952

State = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """What a check found, and what to do about it ("" when nothing)."""

    check: str
    state: State
    found: str
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", type=Path, default=Path(), help="the disk to test (default: here)")
    parser.add_argument("--json", action="store_true", help="print findings as JSON, one per line")
    connection.add_arguments(parser, named=False)


def run(arguments: argparse.Namespace) -> int:
    findings = [check() for check in checks(arguments)]
    if arguments.json:
        for finding in findings:
            print_json(finding._asdict())
    else:
        print_findings(findings)
    return 1 if any(finding.state == "fail" for finding in findings) else 0


def checks(arguments: argparse.Namespace) -> list[Callable[[], Finding]]:
    """Every check, ready to run."""
    return [
        lambda: python_version(sys.version_info[:2]),
        libzmq,
        lambda: disk_sync(arguments.data),
        lambda: disk_space(arguments.data),
        lambda: descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        lambda: clock(time.time()),
        lambda: broker(arguments),
        java,
    ]


def python_version(version: tuple[int, int]) -> Finding:
    text = f"{version[0]}.{version[1]}"
    if version < PYTHON_MIN:
        return Finding("Python", "fail", text, "Install Python 3.11 or newer.")
    return Finding("Python", "ok", text)


def libzmq() -> Finding:
    try:
        from tidings.transport import curve
    except ImportError as error:
        return Finding("libzmq", "fail", f"pyzmq cannot be imported ({error})", "Install it: pip install pyzmq.")
    version, has_curve = curve.libzmq()
    if tuple(map(int, version.split(".")[:2])) < LIBZMQ_MIN:
        return Finding("libzmq", "fail", version, "Install the pyzmq wheel, which brings libzmq 4.3 or newer.")
    if not has_curve:
        return Finding("libzmq", "warn", f"{version} without CURVE", "Install the pyzmq wheel to use keys.")
    return Finding("libzmq", "ok", f"{version} with CURVE")


def disk_sync(folder: Path) -> Finding:
    """The median time of an fdatasync after a write of 4 KiB, which is what a lone durable put waits for."""
    name = "disk sync"
    times_us: list[float] = []
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".tidings-doctor-") as file:
            end = time.monotonic() + SYNC_SECONDS_MAX
            while len(times_us) < SYNCS and (time.monotonic() < end or not times_us):
                os.write(file.fileno(), bytes(SYNC_BYTES))
                began = time.perf_counter()
                os.fdatasync(file.fileno())
                times_us.append((time.perf_counter() - began) * 1e6)
    except OSError as error:
        return Finding(name, "fail", f"{folder}: {error.strerror}", "Give a folder you may write to with --data DIR.")
    return judge_sync(statistics.median(times_us))


def judge_sync(median_us: float) -> Finding:
    """What the median time of an fdatasync says about a disk."""
    text = f"{median_us:,.0f} us for {SYNC_BYTES // 1024} KiB" if median_us < 10_000 else f"{median_us / 1000:,.0f} ms"
    if median_us < SYNC_US_SUSPICIOUS:
        advice = "The disk may lie about sync (or is memory): a power cut could lose acknowledged messages."
        return Finding("disk sync", "warn", text, advice)
    if median_us > SYNC_US_SLOW:
        return Finding("disk sync", "warn", text, "Each single put waits this long: publish in batches, or use an SSD.")
    return Finding("disk sync", "ok", text)


def disk_space(folder: Path) -> Finding:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding("disk space", "fail", f"{folder}: {error.strerror}", "Name an existing folder with --data.")
    text = f"{free / 1e9:,.1f} GB free"
    if free < DISK_BYTES_LOW:
        return Finding("disk space", "warn", text, "Make room, or let old messages be removed with --retain-bytes.")
    return Finding("disk space", "ok", text)


def descriptors(limit: int) -> Finding:
    if limit == resource.RLIM_INFINITY:
        return Finding("open files", "ok", "unlimited")
    text = f"{limit:,}, enough for about {max(0, limit - DESCRIPTORS_OWN):,} clients"
    if limit < DESCRIPTORS_LOW:
        return Finding("open files", "warn", text, "Raise the limit before serving: ulimit -n 65536.")
    return Finding("open files", "ok", text)


def clock(now: float) -> Finding:
    year = 1970 + int(now // YEAR_SECONDS)
    resolution_us = time.get_clock_info("monotonic").resolution * 1e6
    if not 2025 <= year < 2100:
        return Finding("clock", "fail", f"it says {year}", "Set the clock: messages carry its time.")
    if resolution_us > 1000:
        return Finding("clock", "warn", f"ticks of {resolution_us:,.0f} us", "Time-outs will be coarse.")
    return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)))


def broker(arguments: argparse.Namespace) -> Finding:
    """Whether the bus answers; if it is the default one and does not, whether its port is free to serve on."""
    address: str = arguments.bus
    patience = {"timeout": arguments.timeout or 1.0, "retries": arguments.retries or 1}
    try:
        if connection.embedded_folder(address) is not None:
            return Finding("broker", "ok", f"{address} is an embedded bus, which needs none")
        with open_bus(argparse.Namespace(**(vars(arguments) | patience))) as bus:
            count, damaged = len(bus.topics()), bus.status()["damaged"]
    except Unavailable:
        return no_broker(address)
    except TidingsError as error:
        return Finding("broker", "fail", f"{address} could not be asked", str(error))
    if damaged:
        found = f"{address} answers and has found its disk damaged in {damaged:,} place{'s' if damaged != 1 else ''}"
        advice = "See its log, and check the disk. Alone, restore the folder from a copy; a member repairs itself."
        return Finding("broker", "warn", found, advice)
    return Finding("broker", "ok", f"{address} answers and has {count:,} topic{'s' if count != 1 else ''}")


def no_broker(address: str) -> Finding:
    """What an address without a broker means."""
    if address != connection.DEFAULT_BUS:
        return Finding("broker", "fail", f"{address} does not answer", "Start it with tidings serve, or correct --bus.")
    port = int(address.rpartition(":")[2])
    if port_is_free(port):
        return Finding("broker", "ok", f"none at {address}, and port {port} is free", "Start one with tidings serve.")
    advice = "Find out which process holds the port, or choose another port with --bind."
    return Finding("broker", "warn", f"port {port} is taken by something that does not answer", advice)


def port_is_free(port: int) -> bool:
    """Whether a broker could be bound to a port on loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


def java() -> Finding:
    """Only Spark needs Java, so its absence is never more than a warning."""
    program = shutil.which("java")
    if program is None:
        return Finding("Java", "warn", "none", "Needed only for Spark: install a JDK 17 or newer.")
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=20, check=False)
        text = answer.stderr + answer.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Java", "warn", f"{program} does not run ({error})", "Needed only for Spark.")
    return judge_java(text)


def judge_java(text: str) -> Finding:
    """What `java -version` printed."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return Finding("Java", "warn", "a version that cannot be read", "Needed only for Spark.")
    major = int(match[2] or 0) if match[1] == "1" else int(match[1])
    if major < JAVA_MIN:
        return Finding("Java", "warn", str(major), "Spark needs a JDK 17 or newer; nothing else does.")
    return Finding("Java", "ok", str(major))


def print_findings(findings: list[Finding]) -> None:
    """The findings as an aligned table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("check", "", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        state = Text(finding.state, style=styles[finding.state])
        table.add_row(finding.check, state, Text(finding.found), Text(finding.advice))
    Console(highlight=False).print(table)
