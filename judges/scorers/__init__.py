"""Scorers that people use as rewards, as judges: fixed functions of a text, whose biases nobody
planted. They answer as simulated judges do, in the same protocol and from the same store."""
