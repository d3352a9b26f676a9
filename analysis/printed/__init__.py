"""What the commands of `analysis` print."""
