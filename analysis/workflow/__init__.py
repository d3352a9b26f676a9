"""What a judge taught a policy that writes programs."""
