"""From what a step pushes to where a run ends."""
