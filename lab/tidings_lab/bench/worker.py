"""`python -m tidings_lab.bench.worker`: does the jobs that come on its input, a line of JSON each.

A job is [name, arguments] and its answer ["done", result] or ["failed", sentence]. The input's end is the
worker's end.
"""

from __future__ import annotations

import json
import sys

from tidings_lab.bench.jobs import JOBS, Desk


def main() -> int:
    """Works until there is nothing more to do."""
    desk = Desk()
    answers = sys.stdout
    sys.stdout = sys.stderr  # What somebody prints by mistake must not look like an answer.
    try:
        for line in sys.stdin:
            name, arguments = json.loads(line)
            try:
                answer = ["done", JOBS[name](desk, **arguments)]
            except Exception as error:  # noqa: BLE001 - whatever it was, the one who asked is told
                answer = ["failed", f"{name}: {type(error).__name__}: {error}"]
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    except KeyboardInterrupt:
        pass
    finally:
        desk.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
