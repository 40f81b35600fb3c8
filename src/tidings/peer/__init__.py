"""A node of an overlay as a real process: the stacks of the simulator over ZeroMQ.

`node` runs a stack, `desk` serves the clients at its door, `caller` is such a client, `survey` walks from node to node,
and `drive` is the client that issues commands by lot and counts what comes.
"""
