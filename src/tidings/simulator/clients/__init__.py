"""Clients of the world, and what they do: publishers, subscribers, members of groups, writers in stages."""
