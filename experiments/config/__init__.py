"""Configurations of others, as settings of a sweep."""
