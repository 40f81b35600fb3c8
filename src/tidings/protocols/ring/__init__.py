"""The ring of replica groups: who owns which topics, and how ownership moves.

`ranges` is the circle, cut up; `messages` is what nodes of a ring say to each other. Ownership is a fact in the journal
of a group (`ownership`), and moves by a one-way handoff. Chord only finds where to ask.
"""
