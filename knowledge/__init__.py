"""What the project knows: directions, strategies, transitions and targets as data; memory and rewrites as code."""
