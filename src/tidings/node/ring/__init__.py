"""A node of a ring: at every node's door any client is served, and the leader of a group owns its topics.

`proxy` is the door: it finds who owns what a request is about and passes the frames on. `engine` joins it with the
group's replica, the owner's half and the virtual node of the group in the overlay.
"""
