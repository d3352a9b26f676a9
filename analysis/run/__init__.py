"""Estimators whose unit is a run."""
