"""Whether this machine is ready for a study: what `experiments.doctor` looks at."""
