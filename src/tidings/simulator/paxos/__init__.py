"""Simulated worlds of a replicated group: nodes that agree by Multi-Paxos while everything goes wrong."""
