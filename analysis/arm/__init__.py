"""Estimators whose unit is an arm of runs."""
