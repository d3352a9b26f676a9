"""What training under each judge did: curves, gap, and behaviours that moved."""
