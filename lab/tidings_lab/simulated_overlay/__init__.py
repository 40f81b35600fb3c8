"""The bare overlay in virtual time: thousands of nodes in one process, each a real stack of protocols."""
