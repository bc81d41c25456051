"""Planners: they propose moves and write kernels. They never measure and never commit."""
