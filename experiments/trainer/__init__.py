"""GRPO by TRL, recorded."""
