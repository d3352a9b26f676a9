"""What `experiments.monitor` shows of a study, read from its records alone."""
