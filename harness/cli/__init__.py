"""The command line: the composition root, and the only part that sees everything."""
