"""The clients' side of a node: commands in, answers out, and the messages that arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from tidings.errors import MessageTooLarge, ProtocolError, TidingsError, Unavailable
from tidings.protocols import pubsub
from tidings.protocols.stack import Request
from tidings.settings import PeerSettings
from tidings.wire import door
from tidings.wire.codec import guess_request

TAKEN_MAX = 1_000
TAKEN_BYTES_MAX = 512 * 1024


class Desk:
    """Serves commands. What arrives is kept, numbered from 0, until newer messages need the room."""

    def __init__(
        self, settings: PeerSettings, ask: Callable[[Request], None], look: Callable[[], door.NodeView]
    ) -> None:
        self._settings = settings
        self._ask = ask
        self._look = look
        self._inbox: deque[door.Text] = deque()
        self._inbox_bytes = 0
        self.arrived = 0
        self.published = 0
        self.lost = 0
        self.is_closing = False

    def keep(self, news: pubsub.Arrived) -> None:
        """A message has arrived."""
        body = news.body.decode(errors="replace")
        text = door.Text(news.topic, news.publisher, news.life, news.number, body, news.also)
        self._inbox.append(text)
        self._inbox_bytes += len(text.text)
        self.arrived += 1
        while (
            len(self._inbox) > self._settings.inbox_messages_max or self._inbox_bytes > self._settings.inbox_bytes_max
        ):
            self._inbox_bytes -= len(self._inbox.popleft().text)

    def serve(self, frame: bytes) -> door.AnyAnswer:
        """The answer to a command, whatever it is."""
        try:
            command = door.decode_command(frame)
        except ProtocolError as error:
            return door.Failed(guess_request(frame), error.number, str(error))
        try:
            return self._serve(command)
        except TidingsError as error:
            return door.Failed(command.request, error.number, str(error))

    def _serve(self, command: door.AnyCommand) -> door.AnyAnswer:
        match command:
            case door.Look(request):
                return door.Seen(request, self._look())
            case door.TakeTexts(request, first, count_max):
                return self._take(request, first, count_max)
        if self.is_closing:
            raise Unavailable("This node is leaving the overlay: ask another one.")
        match command:
            case door.Publish(request, topic, text, also):
                self._publish(topic, text, also)
            case door.Subscribe(request, topic):
                self._ask(pubsub.Subscribe(topic))
            case door.Unsubscribe(request, topic):
                self._ask(pubsub.Unsubscribe(topic))
        return door.Done(command.request)

    def _publish(self, topic: str, text: str, also: tuple[str, ...]) -> None:
        body = text.encode()
        if len(body) > self._settings.text_bytes_max:
            raise MessageTooLarge(
                f"A text of {len(body)} bytes is above the limit of {self._settings.text_bytes_max} "
                "(text_bytes_max): split it."
            )
        self._ask(pubsub.Publish(topic, body, also))
        self.published += 1

    def _take(self, request: int, first: int, count_max: int) -> door.TakenTexts:
        """Messages from a number on, as many as one answer may hold."""
        oldest = self.arrived - len(self._inbox)
        first = max(first, oldest)
        texts: list[door.Text] = []
        size_bytes = 0
        for text in islice(self._inbox, first - oldest, first - oldest + max(0, min(count_max, TAKEN_MAX))):
            size_bytes += len(text.text)
            if texts and size_bytes > TAKEN_BYTES_MAX:
                break
            texts.append(text)
        return door.TakenTexts(request, first, tuple(texts))
