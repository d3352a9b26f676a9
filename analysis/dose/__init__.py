"""Dose and response: how much behaviour a unit of injected bias makes."""
