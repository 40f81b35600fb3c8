"""The client can be imported, and gets messages, where there are no forks, no `fcntl`, no `resource` and no `poll`.

The systems that lack them are stood in for by a process that has lost them before it imports tidings.
"""

from __future__ import annotations

import subprocess
import sys

BARE = """
import asyncio, os, select, subprocess, sys
import zmq, msgspec

for module, names in ((os, "fork register_at_fork fdatasync posix_fallocate pread"), (select, "poll epoll")):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "grp", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
sys.platform = "win32"

import tidings
import tidings.client.aio
import tidings.transport.curve
from tidings.transport.zeromq import DealerLink

context = zmq.Context.instance()
answering = context.socket(zmq.ROUTER)
port = answering.bind_to_random_port("tcp://127.0.0.1")
link = DealerLink(f"tcp://127.0.0.1:{port}")
link.send([b"question"])
peer, question = answering.recv_multipart()
assert link.receive(0) is None
answering.send_multipart([peer, b"answer to " + question])
print(link.receive(60_000))
link.wake()
print(link.receive(60_000))
link.close()
try:
    tidings.connect(f"tcp://127.0.0.1:{port}", "ann", inbox="inbox")
except tidings.InvalidRequest as error:
    print(error)
answering.close(linger=0)
"""


def test_without_what_only_posix_has() -> None:
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "[b'answer to question']",
        "None",
        "An inbox needs locks that Windows does not have: leave inbox= out.",
    ]
