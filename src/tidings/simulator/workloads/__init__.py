"""The worlds by their names: who lives in each, and what is drawn for it."""
