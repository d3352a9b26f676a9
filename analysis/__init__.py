"""From recorded rollouts and verdicts to estimates, figures and the bias report."""
