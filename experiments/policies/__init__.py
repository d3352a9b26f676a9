"""Policies: loaded, built tiny, merged."""
