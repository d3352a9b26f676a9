"""Judges with known bias, behind the same protocol as real ones."""
