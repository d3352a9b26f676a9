"""How far a run moved on held-out rows, and whether that transfers."""
