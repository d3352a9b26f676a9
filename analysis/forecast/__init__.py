"""Which judge would drift a policy where, from the first rollouts."""
