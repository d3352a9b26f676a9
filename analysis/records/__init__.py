"""A study's records as arrays and frames."""
