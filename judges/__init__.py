"""Judges: one client, one verdict record, one store, and simulated judges with a known bias."""
