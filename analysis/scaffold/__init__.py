"""What a scaffold shows, and how far a policy still needs it."""
