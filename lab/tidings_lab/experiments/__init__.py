"""Experiments: simulations with parameters that return plain rows, and what is made of the rows."""
