"""Planted bugs, which the checkers have to find."""
