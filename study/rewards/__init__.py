"""Rewards: from verdict, rules and truth to one number per rollout, or None."""
