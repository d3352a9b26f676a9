"""Sweeps, cells, tasks, rewards and training: all that makes the records of a study."""
