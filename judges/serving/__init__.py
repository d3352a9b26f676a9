"""Model servers that a judge needs, started and shared."""
