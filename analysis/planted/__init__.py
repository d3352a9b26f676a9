"""Planted truth, and the check that every estimator recovers it."""
