"""The world of brokers: time, the network, nodes, faults, and what puts them together."""
