"""MLflow as a projection of the records."""
