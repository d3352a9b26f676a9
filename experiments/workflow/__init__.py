"""Policies that write workflows: what they are shown, and what their programs are paid."""
