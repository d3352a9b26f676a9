"""Sets whose answers a rule can check: one module for each family of official files."""
