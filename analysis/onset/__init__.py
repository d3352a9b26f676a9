"""When judge and truth diverge, and how far a judge can be followed."""
