"""The child side: one process per job, run under a process that has imported torch and triton already.

Everything here may meet code that nobody has read. It imports the standard library, numpy, torch, triton and
its own folder, so that a bare GPU machine with PyTorch can run it.
"""
