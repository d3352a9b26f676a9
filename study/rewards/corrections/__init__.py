"""What is done to a judge's scores before they are rewards: formulas on arrays, and their order."""
