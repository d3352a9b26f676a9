"""A judge is asked: one answer or many, by a store that asks only once, within a budget."""
