"""What two groups say to each other while arcs go from one to the other. The taker asks, the giver answers.

Everything can be lost, repeated and late: the taker asks again, and what it asks follows from its journal alone.
"""

from __future__ import annotations

from tidings.protocols.ring.arcs import Arcs
from tidings.protocols.ring.messages import Card
from tidings.protocols.stack import Message


class Bequest(Message, frozen=True):
    """The sender wants to leave: would you take these arcs?"""

    giver: Card
    arcs: Arcs


HandoverMessage = Bequest
