"""A cell is one training run: its folder, state, lock and lease, and its records."""
