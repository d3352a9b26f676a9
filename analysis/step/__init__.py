"""Estimators whose unit is a training step."""
