"""Rings and multicast trees in the overlay's world: their checkers, their churn, their planted bugs, their figures."""
