"""Estimates and intervals that know nothing of judges or policies."""
