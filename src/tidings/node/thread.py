"""A broker in a thread of this process, at a port of its own: real requests over TCP, and no process to wait for.

It is a broker alone, on a folder. Its loop is that of `tidings serve`, and so is what it does when its disk fails: it
ends the process, for there is no safe way on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from tidings.journal.disk import lone_disk
from tidings.journal.journal import Journal
from tidings.node.clock import Clock
from tidings.node.engines import lone_engine
from tidings.node.loop import Loop
from tidings.settings import BrokerSettings, JournalSettings, NodeSettings
from tidings.transport.router import Router

ANY_PORT = "tcp://127.0.0.1:*"


class BrokerThread:
    """Serves from when it is made until `close`."""

    def __init__(
        self, folder: Path, broker: BrokerSettings, journal: JournalSettings, clock: Callable[[], int] | None = None
    ) -> None:
        node = NodeSettings(bind=ANY_PORT)
        self._disk = lone_disk(folder)
        self._error: BaseException | None = None
        try:
            engine = lone_engine(broker, Journal.open(self._disk, journal))
            engine.recover()
            router = Router(node, broker.batch_bytes_max)
            self.address = router.address
            self._loop = Loop(engine, router, node, clock or Clock())
            self._thread = threading.Thread(target=self._run, name="tidings-broker", daemon=True)
            self._thread.start()
        except BaseException:
            self._disk.close()
            raise

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:  # noqa: BLE001 - whatever it is, `close` raises it
            self._error = error
        finally:
            self._disk.close()

    def close(self) -> None:
        """Ends it in good order; raises what it could not go on after."""
        if self._thread.is_alive():
            self._loop.stop()
            self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
