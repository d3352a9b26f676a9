"""Starts the model servers of judges and shares them."""
