"""The storage server: a broker's disk in a process of its own, and a readable text for each topic."""
