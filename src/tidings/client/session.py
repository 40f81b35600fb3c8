"""The client's half of the conversation with a broker: pure, without socket, clock or random.

A shell gives it calls, received frames and the time; it says what to send (`outgoing`), when to throw the
connection away first (`reopen`) and when to be woken next (`next_due_ms`).

*Lazy Pirate.* A request that stays unanswered for `timeout_ms` makes the session ask for a new connection
and send everything unanswered again, in the same order and with the same bytes. After `retries` tries
everything unanswered fails as Unavailable; the next call starts afresh.

*NotLeader.* A member of a replica group that does not lead says so, and the session goes where it is sent (`route`),
with everything unanswered, as after a time-out. A group's members are not waited for one by one for so long: what
limits a request there is `retries` times `timeout_ms`, counted from when it was first sent.

*Hello first.* Requests of a name wait until the broker has given that name an epoch. The token stays the
same, so a Hello that is sent again gets the same epoch again. Only where copies of an older request may
still be under way somewhere (see `outbox`) does the session take a new token: the new epoch fences those
copies, so that what the broker says next is final. Before it does, it asks in the old epoch whether that
is still current, so that it does not push out a newer session of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tidings.client.future import Future
from tidings.client.link import Frame
from tidings.client.members import OF_A_STREAM, Members
from tidings.client.outbox import Outbox
from tidings.client.request import Identity, Make, Request
from tidings.client.route import Route
from tidings.client.streams import Streams
from tidings.errors import Fenced, LimitReached, Overloaded, ProtocolError, TidingsError, Unavailable, from_number
from tidings.protocols.broker.messages import (
    VERSION,
    Ack,
    AnyAnswer,
    Beat,
    Commit,
    Delivery,
    Failed,
    Flow,
    GroupBatch,
    Hello,
    Join,
    Leave,
    NotLeader,
    Subscribe,
    Unsubscribe,
    Welcome,
)
from tidings.settings import ClientSettings
from tidings.wire.codec import decode_answer, encode

REQUESTS_MAX = 100_000
"""Requests sent or held back and not yet answered; one more is LimitReached."""

NOT_WELCOME = "The answer to Hello was something else than Welcome: is that a tidings broker?"

GROUP_BEATS = 4
"""So many times as often a reader asks a group whether its streams are served: a leader may be gone without a sign."""

COMING_AND_GOING = (Subscribe, Unsubscribe, Join, Leave)
"""Requests of which an old copy must not undo a newer one."""
ACKNOWLEDGING = (Ack, Commit)
OUTLIVING = (*COMING_AND_GOING, *ACKNOWLEDGING)
"""Requests of which a copy that comes late must not reach a subscription that was made after it."""


class Session:
    """One connected life of a client."""

    def __init__(
        self, client: str, token: bytes, anonymous: bool, settings: ClientSettings, address: str = "the broker"
    ) -> None:
        self.settings = settings
        self.address = address
        self.route = Route.of(address)
        self.now_ms = 0
        self.outgoing: list[list[Frame]] = []
        self.reopen = False
        self.limits: Welcome | None = None
        self.failures = 0
        """How often everything outstanding has failed as Unavailable."""
        self._outstanding: dict[int, Request] = {}
        self._held_count = 0
        self._last_number = 0
        self.failing = False
        """Whether everything outstanding is being failed just now, so that nothing new may be sent."""
        self._leaving = False
        """Whether the present connection is being left, so that what still comes over it no longer counts."""
        self._stale_subscribe = False
        self.identities: dict[str, Identity] = {}
        self.main = self._speak_for(client, token, anonymous)
        self.streams = Streams(self)
        self.members = Members(self, self.streams)

    # What the shell calls.

    def start(self, now_ms: int) -> Future[None]:
        """Says Hello, if it has not been said; done once the broker has answered."""
        who, self.now_ms = self.main, now_ms
        welcomed: Future[None] = Future()
        if who.epoch:
            welcomed.finish(None)
            return welcomed
        self._greet(who)
        assert who.greeting is not None

        def on_greeted(greeted: Future[AnyAnswer]) -> None:
            if greeted.error is not None:
                welcomed.fail(greeted.error)
            elif not who.epoch:
                welcomed.fail(ProtocolError(NOT_WELCOME))
            else:
                welcomed.finish(None)

        who.greeting.future.then(on_greeted)
        return welcomed

    def identity(self, name: str, token: bytes) -> Identity:
        """The identity of that name in this session; a new one says its own Hello when it is first used."""
        return self.identities.get(name) or self._speak_for(name, token, False)

    def be_patient(self, seconds: float) -> None:
        """Tries from now on as often as fits into so many seconds, about."""
        tries = max(1, round(seconds * 1000 / self.settings.timeout_ms))
        self.settings = msgspec.structs.replace(self.settings, retries=tries)

    def _speak_for(self, name: str, token: bytes, anonymous: bool) -> Identity:
        who = self.identities[name] = Identity(name, token, anonymous)
        who.outbox = Outbox(self, who)
        return who

    def request(
        self, now_ms: int, make: Make, bodies: Sequence[bytes] = (), identity: Identity | None = None, tries: int = 1
    ) -> Request:
        """Asks something of the broker; the request's `future` will have the answer."""
        self.now_ms = now_ms
        request = Request(identity or self.main, make, bodies)
        request.tries = tries
        self.submit(request)
        return request

    def forget(self, request: Request) -> None:
        """The answer to this request is not waited for any longer."""
        who = request.identity
        if self._outstanding.pop(request.number, None) is not None:
            who.outstanding -= 1
            if request.copies_in_epoch > 1 and request.kind in OUTLIVING:
                self._stale_subscribe = True
            if who.held and not who.outstanding:  # What waited for the last answer need not wait any longer.
                self._greet(who)
        elif request in who.held:
            who.held.remove(request)
            self._held_count -= 1

    def receive(self, now_ms: int, frames: Sequence[Frame]) -> None:
        """Takes a message from the broker."""
        self.now_ms = now_ms
        try:
            answer = decode_answer(frames[0])
        except ProtocolError as error:
            text = str(error)
            self._fail_all(lambda: ProtocolError(text))
            return
        self.route.heard_ms = now_ms
        if self._leaving and not self._counts(answer):
            return
        if isinstance(answer, Delivery):
            self.streams.on_delivery(answer, frames[1:])
            return
        if isinstance(answer, GroupBatch):
            self.members.on_group_batch(answer, frames[1:])
            return
        if isinstance(answer, NotLeader):
            self._on_not_leader(answer)
            return
        request = self._outstanding.get(answer.request)
        if request is None:
            return  # A second answer to a request that was sent twice, or one that came too late.
        if isinstance(answer, Failed) and answer.number == Overloaded.number and request.copies > 1 and request.stores:
            return  # One copy was refused for now; another may have been stored. Only a later answer can tell.
        del self._outstanding[answer.request]
        who = request.identity
        who.outstanding -= 1
        if self.route.grouped:
            self.route.on_answer(now_ms, request.sent_ms)
        if isinstance(answer, Failed):
            problem = from_number(answer.number, answer.text)
            if isinstance(problem, Fenced) and request.kind not in OF_A_STREAM:
                self._on_fenced(who, problem)
            request.owner.fail(problem)
        else:
            request.received = frames[1:]
            request.owner.finish(answer)
        if request.copies_in_epoch > 1 and request.kind in OUTLIVING:
            self._stale_subscribe = True
        if who.held and not who.outstanding:
            self._greet(who)

    def tick(self, now_ms: int) -> None:
        """Does what is due. The shell takes in everything that has come before it calls this."""
        self.now_ms = now_ms
        first = next(iter(self._outstanding.values()), None)
        if self.route.grouped:
            self._follow(first)
        elif first is not None and now_ms - first.sent_ms >= self.settings.timeout_ms:
            if first.tries >= self.settings.retries:
                self._fail_all(self.unavailable)
            else:
                self._try_again()
        self.streams.tick()

    @property
    def unanswered_count(self) -> int:
        """How many requests have been sent, or wait in `outgoing`, and are not answered."""
        return len(self._outstanding)

    def next_due_ms(self) -> int | None:
        """When `tick` has something to do next, or None."""
        due = self.streams.beat_due_ms
        first = next(iter(self._outstanding.values()), None)
        late: int | None = None
        if self.route.grouped:
            late = self._move_due_ms(first)
        elif first is not None:
            late = first.sent_ms + self.settings.timeout_ms
        if late is not None:
            due = late if due is None else min(due, late)
        return due

    @property
    def beat_ms(self) -> int:
        """How often a client that waits for messages asks whether its streams are still served."""
        beat_ms = self.settings.beat_ms
        return max(1, beat_ms // GROUP_BEATS) if self.route.grouped else beat_ms

    # Requests.

    def submit(self, request: Request) -> None:
        """Sends a request, or once more one that was answered: the same bytes, unless the epoch is a new one."""
        assert request.number not in self._outstanding
        who = request.identity
        if who.fenced is not None:
            request.owner.fail(Fenced(str(who.fenced)))
        elif len(self._outstanding) + self._held_count >= REQUESTS_MAX:
            request.owner.fail(
                LimitReached(f"{REQUESTS_MAX} requests are waiting for their answers: wait for some of them first.")
            )
        elif who.epoch and not who.renew and who.greeting is None and not who.held:
            self._send(request)
        else:
            who.held.append(request)
            self._held_count += 1
            self._greet(who)

    def _send(self, request: Request) -> None:
        who = request.identity
        if not request.frames or request.epoch != who.epoch:
            if not request.number:
                self._last_number += 1
                request.number = self._last_number
            request.epoch = who.epoch
            request.copies_in_epoch = 0
            header = request.make(request.number, who.epoch)
            request.kind = type(header)
            request.frames = [encode(header), *request.bodies]
        if request.kind is Unsubscribe and any(each.kind in ACKNOWLEDGING for each in self._outstanding.values()):
            who.stale_acks = True
        is_stale = self._stale_subscribe and request.kind in COMING_AND_GOING
        if is_stale or (who.stale_acks and request.kind is Subscribe):
            # An older copy of such a request, or of an acknowledgement, may still arrive, and must not undo this one.
            self._stale_subscribe, who.renew = False, True
            request.frames = []
            self.submit(request)
            return
        request.sent_ms = self.now_ms
        self._outstanding[request.number] = request
        who.outstanding += 1
        if self._leaving and self.route.pause_ends_ms is not None:
            return  # It goes out with everything else when the pause is over.
        request.copies += 1
        request.copies_in_epoch += 1
        self.outgoing.append(request.frames)

    def _try_again(self) -> None:
        """A new connection, and everything unanswered once more."""
        self.reopen = True
        self.outgoing.clear()
        passing = [request for request in self._outstanding.values() if request.kind in (Flow, Beat, *OF_A_STREAM)]
        tries = 1
        since_ms = min((request.sent_ms for request in self._outstanding.values()), default=self.now_ms)
        for request in passing:  # These speak of streams that end with the connection; new ones follow.
            tries = max(tries, request.tries + 1)
            if request is not request.identity.greeting:
                self.forget(request)
        for request in self._outstanding.values():
            request.tries += 1
            request.copies += 1
            request.copies_in_epoch += 1
            if not self.route.grouped:
                request.sent_ms = self.now_ms
            self.outgoing.append(request.frames)
        last = self._last_number
        self.streams.reopen_all(tries)
        self.members.reopen_all(tries)
        if self.route.grouped:  # What takes the place of something that waited has waited as long as nobody led.
            for request in self._outstanding.values():
                if request.number > last:
                    request.sent_ms = max(since_ms, self.route.led_ms)

    def unavailable(self) -> TidingsError:
        """The error that says that nobody answers."""
        tries, seconds = self.settings.retries, self.settings.timeout_ms / 1000
        if self.route.grouped:
            return Unavailable(
                f"The group at {', '.join(self.route.known)} had no leader, or did not answer, for "
                f"{tries * seconds:g} s: check that more than half of its nodes run and can be reached, or give a "
                "longer time-out."
            )
        return Unavailable(
            f"No answer from {self.address} after {tries} {'try' if tries == 1 else 'tries'} of {seconds:g} s: "
            "check that the broker runs and can be reached there, then try again, or give a longer time-out."
        )

    def _fail_all(self, error: Callable[[], TidingsError]) -> None:
        """Everything unanswered fails, and the connection goes with whatever it still holds."""
        self.failures += 1
        self.reopen = True
        self.route.begin_afresh()
        self.outgoing.clear()
        requests = list(self._outstanding.values())
        self._outstanding.clear()
        for who in self.identities.values():
            requests.extend(who.held)
            who.held, who.greeting, who.outstanding = [], None, 0
        self._held_count = 0
        self.failing = True
        self.streams.close_all(error)
        self.members.close_all(error)
        if any(request.copies and request.kind in OUTLIVING for request in requests):
            self._stale_subscribe = True
        for request in requests:
            request.owner.fail(error())
        for who in self.identities.values():
            who.outbox.fail_waiting(error)
        self.failing = False

    # Groups.

    def _on_not_leader(self, answer: NotLeader) -> None:
        if answer.request and answer.request not in self._outstanding:
            return
        self._leaving = True
        if self.route.on_not_leader(self.now_ms, answer.leader, answer.members):
            self._try_again()
        else:
            self.outgoing.clear()

    def _counts(self, answer: AnyAnswer) -> bool:
        """Whether an answer counts although the connection is being left.

        A member that begins to lead in between refuses what follows a request that it had sent elsewhere.
        """
        if self.route.pause_ends_ms is not None:
            return isinstance(answer, NotLeader)
        if not self.reopen:
            self._leaving = False  # The shell has made the new connection, and this came over it.
        return not self._leaving

    def _follow(self, first: Request | None) -> None:
        """Leaves for another member when that is due; `first` is the oldest unanswered request."""
        settings = self.settings
        if first is not None and self.now_ms - first.sent_ms >= settings.retries * settings.timeout_ms:
            if self.route.heard_ms <= first.sent_ms:
                self.route.move_on(self.now_ms)  # Anyone who was silent all that time is not asked first the next time.
            self._fail_all(self.unavailable)
            return
        due_ms = self._move_due_ms(first)
        if due_ms is not None and self.now_ms >= due_ms:
            self.route.move_on(self.now_ms)
            self._try_again()

    def _move_due_ms(self, first: Request | None) -> int | None:
        settings = self.settings
        if first is None:
            return self.route.due_ms(None, settings.timeout_ms)
        due_ms = self.route.due_ms(first.sent_ms, settings.timeout_ms)
        given_up_ms = first.sent_ms + settings.retries * settings.timeout_ms
        return given_up_ms if due_ms is None else min(due_ms, given_up_ms)

    # Names and epochs.

    def _greet(self, who: Identity) -> None:
        if who.greeting is not None:
            return
        if not who.epoch or who.new_token_sent:
            self._say_hello(who)
        elif not who.renew:
            self._release(who)
        elif not who.outstanding:
            check = Request(who, lambda number, epoch: Beat(number, who.name, epoch, ()), ())
            who.greeting = check
            check.future.then(lambda p: self._on_checked(who, p))
            self._send(check)

    def _on_checked(self, who: Identity, checked: Future[AnyAnswer]) -> None:
        who.greeting = None
        if checked.error is None:
            who.next_token()
            self._say_hello(who)
        elif not self.failing:
            self._fail_held(who, checked.error)

    def _say_hello(self, who: Identity) -> None:
        hello = Request(
            who, lambda number, _: Hello(number, VERSION, who.name, who.token, who.anonymous, who.epoch), ()
        )
        who.greeting = hello
        hello.future.then(lambda p: self._on_welcome(who, p))
        self._send(hello)

    def _on_welcome(self, who: Identity, greeted: Future[AnyAnswer]) -> None:
        who.greeting = None
        if self.failing:
            return
        try:
            answer = greeted.outcome()
            if not isinstance(answer, Welcome):
                raise ProtocolError(NOT_WELCOME)
        except TidingsError as error:
            self._fail_held(who, error)
            return
        renewed = who.epoch != 0
        who.welcome(answer.epoch)
        self.limits = answer
        if answer.members:
            self.route.learn(answer.members)
        if who is self.main and renewed:
            self.streams.reopen_all(1)
            self.members.reopen_all(1)
        self._release(who)
        who.outbox.pump()

    def _release(self, who: Identity) -> None:
        held, who.held = who.held, []
        self._held_count -= len(held)
        # What had been sent before keeps the order in which it was, whatever it was that had come back first.
        for request in sorted(held, key=lambda request: request.number or 1 << 62):
            self.submit(request)

    def _fail_held(self, who: Identity, error: BaseException) -> None:
        held, who.held = who.held, []
        self._held_count -= len(held)
        for request in held:
            # What was sent before may have been stored, whatever became of this try.
            kind = Unavailable if request.copies and not isinstance(error, Fenced) else type(error)
            request.owner.fail(kind(str(error)))
        if isinstance(error, TidingsError):
            who.outbox.fail_waiting(lambda: type(error)(str(error)))

    def _on_fenced(self, who: Identity, error: Fenced) -> None:
        who.fenced = error
        self._fail_held(who, error)
        if who is self.main:
            self.streams.close_all(lambda: Fenced(str(error)))
            self.members.close_all(lambda: Fenced(str(error)))
