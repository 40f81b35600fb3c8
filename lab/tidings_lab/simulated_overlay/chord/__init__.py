"""Chord rings and Scribe trees in the overlay's world: their checkers, churn and worlds."""
