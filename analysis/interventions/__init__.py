"""What each intervention on a biased judge bought."""
