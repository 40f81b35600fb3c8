"""The process of a storage server: one thread at the door, which keeps the files, and one that follows the journal.

    frames -> wire -> keeper -> disk -> answer
                        |
                        +--> follower -> texts, the last message

A write or a sync that fails ends the process without an answer: what the disk has lost is not known, and anyone who
waits asks again when the server is back.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from tidings.descriptors import reserve
from tidings.errors import ProtocolError, StorageError
from tidings.journal.disk import RealDisk
from tidings.journal.folder import BROKER
from tidings.protocols.storage import REFUSED, AskStorage, Failed, Last
from tidings.settings import BrokerSettings, NodeSettings
from tidings.storage.follower import Follower
from tidings.storage.keeper import Keeper
from tidings.transport.router import Peer, Router
from tidings.wire.codec import Frame, guess_request
from tidings.wire.storage import FRAME_BYTES_MAX, decode_call, frames_of

EXIT_STORAGE_FAILED = 74
"""The exit code after a write or sync that failed: EX_IOERR of sysexits.h, as a broker's."""
WAIT_MS = 1_000
CALLS_AT_ONCE_MAX = 64
LINGER_MS = 1_000
SWITCH_SECONDS = 0.00002
"""How long the follower may keep the door waiting for the interpreter, each time that one of a commit's dozen system
calls has ended. With Python's five milliseconds a commit would wait far longer for the follower than for the disk."""


class Server:
    """A storage server at its door."""

    def __init__(self, router: Router, keeper: Keeper, follower: Follower) -> None:
        self._router = router
        self._keeper = keeper
        self._follower = follower
        self._stop = False
        keeper.keeps = follower.keeps
        keeper.on_final = follower.on_final
        keeper.on_cut = follower.on_cut
        keeper.on_open = follower.on_open

    def stop(self) -> None:
        """Asks the server to end in good order; may be called from any thread or signal handler."""
        self._stop = True
        self._router.wake()

    def run(self) -> None:
        """Serves until somebody stops it."""
        router = self._router
        self._follower.start()
        while not self._stop:
            if router.wait(WAIT_MS, reading=True):
                for peer, frames, _ in router.receive(CALLS_AT_ONCE_MAX):
                    self._on_call(peer, frames)
            self._send_replies()
            self._keeper.release()
            self._keeper.restock()
        self._follower.stop()
        self._send_replies()
        self._keeper.sync_mark()
        router.close(LINGER_MS)

    def _on_call(self, peer: Peer, frames: list[Frame]) -> None:
        try:
            call = decode_call(frames)
        except ProtocolError as error:
            number = guess_request(frames[0]) if frames else 0
            self._send(peer, [*frames_of(Failed(number, REFUSED, str(error), error.number), ())])
            return
        if isinstance(call, Last | AskStorage):
            holder = self._keeper.holder
            self._follower.ask(peer, call, holder.epoch if holder else 0, self._keeper.size_bytes)
        else:
            answer, buffers = self._keeper.handle(call, frames[1:])
            self._send(peer, frames_of(answer, buffers))

    def _send_replies(self) -> None:
        replies = self._follower.replies
        while replies:
            peer, answer, buffers = replies.popleft()
            self._send(peer, frames_of(answer, buffers))

    def _send(self, peer: Peer, frames: list[Frame]) -> None:
        self._router.send_all([(peer, frames)])


def serve(data: Path, door: NodeSettings, on_ready: Callable[[str], None]) -> None:
    """Runs a storage server on a folder until SIGTERM or SIGINT. `on_ready` gets the address."""
    sys.setswitchinterval(SWITCH_SECONDS)
    reserve()
    disk = RealDisk(data, BROKER)
    try:
        keeper = Keeper(disk, lambda: secrets.randbits(62) + 1)
        router = Router(door, FRAME_BYTES_MAX)
        settings = keeper.holder.settings if keeper.holder is not None else BrokerSettings()
        server = Server(router, keeper, Follower(data, settings, router.wake))
        _stop_on_signals(server, router.wake_descriptor)
        on_ready(router.address)
        try:
            server.run()
        except (OSError, StorageError) as error:
            sys.stderr.write(f"tidings: the storage could not be written ({error}); stopping without an answer.\n")
            sys.stderr.flush()
            os._exit(EXIT_STORAGE_FAILED)
    finally:
        disk.close()


def _stop_on_signals(server: Server, wake_descriptor: int) -> None:
    if threading.current_thread() is not threading.main_thread():
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        server.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    signal.set_wakeup_fd(wake_descriptor, warn_on_full_buffer=False)
