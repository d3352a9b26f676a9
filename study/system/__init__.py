"""The machine: files, locks, clocks, GPUs, mounts, how a command stops, and secrets kept out."""
