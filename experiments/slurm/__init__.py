"""What is asked of Slurm."""
