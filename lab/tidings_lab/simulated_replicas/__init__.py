"""Bare replicas in virtual time: nodes that agree by Multi-Paxos on a toy state while everything goes wrong."""
