"""Policies: loaded from a folder or the hub, or built tiny."""
