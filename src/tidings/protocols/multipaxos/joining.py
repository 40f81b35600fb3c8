"""How nodes come to a group: what is said before a node has a number.

A node that is started for the first time gives its folder a mark, drawn at random (`disk`), and tells all addresses
that it was given that it is there (`Meet`), again and again, until somebody tells it who it is (`Found`).

- *Founding.* The first of the addresses waits until it has met every other founder and has seen that all of them are
  new. It then draws the group's name, writes down who has founded it, and tells each. A founder that has lost its disk
  is told by the others that the group exists: it never founds again, and its old number is not given to its new disk.
- *Joining.* A member that is met by a stranger tells it where the members are; the one that leads takes it in once an
  operator wants it, or at once if it comes in the place of a member that has lost its disk.
"""

from __future__ import annotations

import msgspec

from tidings.protocols.fields import Name, Number, Several
from tidings.protocols.stack import Message


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A number of a group: where it is reached, and the disk that it stands for."""

    number: Number
    address: Name
    disk: bytes


class Meet(Message, frozen=True):
    """I am new, and here. These are the founders, as I was told; none: I want to join."""

    address: Name
    disk: bytes
    founders: Several[Name]


class Found(Message, frozen=True):
    """This is who you are: a founder, or one who has joined (then there are no founders to be known)."""

    group: bytes
    number: Number
    founders: Several[Member]
    members: Several[Member] = ()
    """Where all members are, you among them, with the disk that the number is for."""


class Known(Message, frozen=True):
    """There is a group already, and its members are here."""

    addresses: Several[Name]


JoiningMessage = Meet | Found | Known
