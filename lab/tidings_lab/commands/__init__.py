"""Commands of `tidings` that need the laboratory, a module each, as in `tidings.cli`."""
