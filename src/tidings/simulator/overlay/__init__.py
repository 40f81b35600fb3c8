"""A simulation for overlays: thousands of nodes in one process, each a real stack of protocols."""
