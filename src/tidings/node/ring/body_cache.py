"""The proxy's half of `contents`: bodies that have come by themselves, and the deliveries that wait for them.

A body that is missing for `FETCH_AFTER_MS` is asked for at its owner, again every `FETCH_AGAIN_MS`; after `WAIT_MS_MAX`
the connections of all who wait for it are given up. What waits for one client is a line: nothing overtakes. Bodies are
kept for `KEPT_MS`, in which every delivery that names them has long come. Everything is bounded: of the bodies the
oldest go, and a client for whom too much waits is sent away, to come again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tidings.protocols.ring.messages import Bodies, Ref
from tidings.wire.codec import Frame

FETCH_AFTER_MS = 40
FETCH_AGAIN_MS = 300
FETCH_MAX = 16
"""Bodies in one question, so that an answer has less than a MiB."""
FETCHES_MAX = 64
"""Questions at a time."""
WAIT_MS_MAX = 1_500
KEPT_MS = 5_000
KEPT_MAX = 10_000
KEPT_BYTES_MAX = 32 * 1024 * 1024
MISSING_MAX = 10_000
LINE_MAX = 4_096
"""Deliveries and answers that wait for one client."""
LINE_BYTES_MAX = 8 * 1024 * 1024
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""What waits for all clients together."""


class _Waiting:
    """Frames for a client; some may have to come yet."""

    __slots__ = ("connection", "frames", "missing")

    def __init__(self, connection: int, frames: list[Frame | None], missing: int = 0) -> None:
        self.connection = connection
        self.frames = frames
        """None where a body is missing; nothing at all once nobody waits for it."""
        self.missing = missing

    @property
    def size_bytes(self) -> int:
        return sum(len(frame) for frame in self.frames if frame is not None)


class _Line:
    """What waits for one client, in order; the first one waits for a body."""

    __slots__ = ("items", "size_bytes")

    def __init__(self) -> None:
        self.items: deque[_Waiting] = deque()
        self.size_bytes = 0


class _Missing:
    """A body that has not come, and where it belongs."""

    __slots__ = ("asked_ms", "since_ms", "wanted")

    def __init__(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self.asked_ms = now_ms + FETCH_AFTER_MS - FETCH_AGAIN_MS
        self.wanted: list[tuple[_Waiting, int]] = []


Key = tuple[str, Ref]
"""A body: the node that has it in its journal, and what it is called there."""


class BodyCache:
    """The proxy's half."""

    def __init__(
        self,
        answer: Callable[[int, list[Frame]], None],
        give_up: Callable[[int], None],
        fetch: Callable[[str, tuple[Ref, ...]], None],
    ) -> None:
        self._answer = answer
        """Lets frames through to a client."""
        self._give_up = give_up
        """Ends a client's connection."""
        self._fetch = fetch
        """Asks a node for bodies."""
        self._kept: dict[Key, tuple[int, Frame]] = {}
        """When it came, and what; the oldest first."""
        self.kept_bytes = 0
        self._lines: dict[int, _Line] = {}
        """Only clients for whom something waits have one."""
        self.waiting_bytes = 0
        self._missing: dict[Key, _Missing] = {}
        self.fetched = 0
        """Bodies that were asked for, each time counted."""

    def __len__(self) -> int:
        return len(self._kept)

    # What comes.

    def on_bodies(self, now_ms: int, bodies: Bodies, frames: Sequence[Frame]) -> None:
        """Bodies have come; anyone who waited for them is served."""
        served: dict[int, None] = {}
        for ref, frame in zip(bodies.refs, frames, strict=False):
            key = (bodies.owner, ref)
            if len(frame) != ref.size_bytes or key in self._kept:
                continue
            self._kept[key] = (now_ms, frame)
            self.kept_bytes += len(frame)
            missing = self._missing.pop(key, None)
            for waiting, index in missing.wanted if missing is not None else ():
                if waiting.frames:
                    self._fill(waiting, index, frame)
                    served[waiting.connection] = None
        while len(self._kept) > KEPT_MAX or self.kept_bytes > KEPT_BYTES_MAX:
            self._throw_out_oldest()
        for connection in served:
            self._serve(connection)

    def _fill(self, waiting: _Waiting, index: int, frame: Frame) -> None:
        waiting.frames[index] = frame
        waiting.missing -= 1
        self._lines[waiting.connection].size_bytes += len(frame)
        self.waiting_bytes += len(frame)
        # It is not checked here whether that is too much: what waits for this body is about to go.

    def show(
        self, now_ms: int, connection: int, owner: str, refs: Sequence[Ref | None], frames: Sequence[Frame]
    ) -> None:
        """A delivery for a client: its header, and the bodies that have no reference."""
        behind = iter(frames[1:])
        waiting = _Waiting(connection, [frames[0]])
        for ref in refs:
            if ref is None:
                frame = next(behind, None)
                if frame is None:
                    self._end(connection)  # Nobody sends that, and the client would miss something.
                    return
                waiting.frames.append(frame)
                continue
            kept = self._kept.get((owner, ref))
            waiting.frames.append(None if kept is None else kept[1])
            if kept is None and not self._miss(now_ms, (owner, ref), waiting):
                waiting.frames.clear()
                self._end(connection)
                return
        self._stand(connection, waiting)

    def _miss(self, now_ms: int, key: Key, waiting: _Waiting) -> bool:
        missing = self._missing.get(key)
        if missing is None:
            if len(self._missing) >= MISSING_MAX:
                return False
            missing = self._missing[key] = _Missing(now_ms)
        missing.wanted.append((waiting, len(waiting.frames) - 1))
        waiting.missing += 1
        return True

    # What waits.

    def has_line(self, connection: int) -> bool:
        """Whether something waits for a client, behind which everything else has to wait."""
        return connection in self._lines

    def stand_behind(self, connection: int, frames: Sequence[Frame]) -> None:
        """An answer for a client for whom something waits."""
        self._stand(connection, _Waiting(connection, list(frames)))

    def _stand(self, connection: int, waiting: _Waiting) -> None:
        line = self._lines.get(connection)
        if line is None:
            if not waiting.missing:
                self._answer(connection, _whole(waiting))
                return
            line = self._lines[connection] = _Line()
        line.items.append(waiting)
        size_bytes = waiting.size_bytes
        line.size_bytes += size_bytes
        self.waiting_bytes += size_bytes
        if len(line.items) > LINE_MAX or line.size_bytes > LINE_BYTES_MAX or self.waiting_bytes > WAITING_BYTES_MAX:
            self._end(connection)

    def _serve(self, connection: int) -> None:
        """Lets through what has all its bodies, as far as the first that has not."""
        while (line := self._lines.get(connection)) is not None:
            if line.items[0].missing:
                return
            waiting = line.items.popleft()
            size_bytes = waiting.size_bytes
            line.size_bytes -= size_bytes
            self.waiting_bytes -= size_bytes
            if not line.items:
                del self._lines[connection]
            self._answer(connection, _whole(waiting))

    def forget(self, connection: int) -> None:
        """A client's connection has ended: nothing waits for it any more."""
        line = self._lines.pop(connection, None)
        if line is not None:
            self.waiting_bytes -= line.size_bytes
            for waiting in line.items:
                waiting.frames.clear()

    def _end(self, connection: int) -> None:
        self.forget(connection)
        self._give_up(connection)

    # Time.

    def tick(self, now_ms: int) -> None:
        """Asks for what is missing, gives up what never comes, and throws out what nobody has wanted."""
        questions: dict[str, list[Ref]] = {}
        room = FETCH_MAX * FETCHES_MAX
        for key, missing in list(self._missing.items()):
            if key not in self._missing:
                continue
            missing.wanted = [(waiting, index) for waiting, index in missing.wanted if waiting.frames]
            if not missing.wanted:
                del self._missing[key]
            elif now_ms - missing.since_ms >= WAIT_MS_MAX:
                del self._missing[key]
                for connection in dict.fromkeys(waiting.connection for waiting, _ in missing.wanted):
                    self._end(connection)
            elif now_ms - missing.asked_ms >= FETCH_AGAIN_MS and room:
                room -= 1
                missing.asked_ms = now_ms
                questions.setdefault(key[0], []).append(key[1])
        for owner, refs in questions.items():
            for start in range(0, len(refs), FETCH_MAX):
                self.fetched += len(refs[start : start + FETCH_MAX])
                self._fetch(owner, tuple(refs[start : start + FETCH_MAX]))
        while self._kept and now_ms - next(iter(self._kept.values()))[0] > KEPT_MS:
            self._throw_out_oldest()

    def _throw_out_oldest(self) -> None:
        _, frame = self._kept.pop(next(iter(self._kept)))
        self.kept_bytes -= len(frame)


def _whole(waiting: _Waiting) -> list[Frame]:
    return [frame for frame in waiting.frames if frame is not None]
