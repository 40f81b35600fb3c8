"""Real clients of a broker that a replica group is: sessions that look for the leader, and nodes that come and go."""
