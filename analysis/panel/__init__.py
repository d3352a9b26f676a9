"""What several judges' scores are worth as one."""
