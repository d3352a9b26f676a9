"""The stages of a pipeline: what each reads and leaves, and whether it is done."""
