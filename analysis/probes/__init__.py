"""A judge's profile from its probes."""
