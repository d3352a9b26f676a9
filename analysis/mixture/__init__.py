"""What a mixture of domains taught."""
