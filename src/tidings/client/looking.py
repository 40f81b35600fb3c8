"""The part of a bus that asks what is there: topics, groups, subscriptions, and how the broker is."""

from __future__ import annotations

from tidings.client import operations, working
from tidings.client.performing import AwaitingPart, BlockingPart
from tidings.message import GroupInfo, TopicInfo


class Looking(BlockingPart):
    """Questions that change nothing, and the one request that stops the broker."""

    def topics(self) -> list[TopicInfo]:
        """All topics."""
        return self.perform(operations.topics(self._core))

    def topic(self, name: str) -> TopicInfo:
        """One topic; NoSuchTopic when there is none of that name."""
        return self.perform(operations.topic(self._core, name))

    def limit_topic(self, name: str, max_backlog: int | None) -> None:
        """Says how many messages may wait in a topic, which is made if it is missing; needs an administrator.

        A put beyond that is Overloaded. 0: any number; None: what the broker's settings say. The limit is kept in the
        journal, with the topic.

        >>> import tempfile, tidings
        >>> with tidings.open(tempfile.mkdtemp(), client_id="alice") as bus:
        ...     bus.limit_topic("jobs", 1_000)
        ...     bus.topic("jobs").max_backlog
        1000
        """
        self.perform(operations.limit_topic(self._core, name, max_backlog))

    def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """All groups, or those of a topic, with their members."""
        return self.perform(working.groups(self._core, topic))

    def subscriptions(self) -> list[tuple[str, ...]]:
        """The subscriptions of this client, each as its topics."""
        return self.perform(operations.subscriptions(self._core))

    def subscribers(self) -> dict[str, list[tuple[str, ...]]]:
        """The subscriptions of every name below this client's own, `client_id/...`."""
        return self.perform(operations.subscribers(self._core))

    def status(self) -> dict[str, int]:
        """Plain numbers about the broker, by name."""
        return self.perform(operations.status(self._core))

    def shutdown(self) -> None:
        """Stops the broker, if this client may."""
        self.perform(operations.shutdown(self._core))


class AsyncLooking(AwaitingPart):
    """The same, awaited."""

    async def topics(self) -> list[TopicInfo]:
        """All topics."""
        return await self.perform(operations.topics(self._core))

    async def topic(self, name: str) -> TopicInfo:
        """One topic; NoSuchTopic when there is none of that name."""
        return await self.perform(operations.topic(self._core, name))

    async def limit_topic(self, name: str, max_backlog: int | None) -> None:
        """Says how many messages may wait in a topic; see `Bus.limit_topic`."""
        await self.perform(operations.limit_topic(self._core, name, max_backlog))

    async def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """All groups, or those of a topic, with their members."""
        return await self.perform(working.groups(self._core, topic))

    async def subscriptions(self) -> list[tuple[str, ...]]:
        """The subscriptions of this client, each as its topics."""
        return await self.perform(operations.subscriptions(self._core))

    async def subscribers(self) -> dict[str, list[tuple[str, ...]]]:
        """The subscriptions of every name below this client's own, `client_id/...`."""
        return await self.perform(operations.subscribers(self._core))

    async def status(self) -> dict[str, int]:
        """Plain numbers about the broker, by name."""
        return await self.perform(operations.status(self._core))

    async def shutdown(self) -> None:
        """Stops the broker, if this client may."""
        await self.perform(operations.shutdown(self._core))
