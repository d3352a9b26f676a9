"""A study of full size, rehearsed whole on this machine: rehearsal, simulated judges."""
