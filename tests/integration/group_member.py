"""A member of a group in a process of its own: writes down what it handles, before it is acked.

Usage: group_member.py ADDRESS NAME LOG
"""

import os
import sys
import time

import tidings


def main() -> None:
    address, name, log = sys.argv[1:]
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with tidings.connect(address, name, timeout=1.0, retries=60) as bus:
        jobs = bus.subscribe("jobs", group="workers")
        print("ready", flush=True)
        for job in jobs:
            assert job.key is not None
            line = b"%d %s %s %d\n" % (time.monotonic_ns(), job.key, job.value, job.attempt)
            os.write(lines, line)


if __name__ == "__main__":
    main()
