"""Natural judges by family, size and prompt."""
