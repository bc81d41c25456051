"""Runs: a git repository each. `state` holds one, `fsck` checks it, `views` and `export` read it."""
