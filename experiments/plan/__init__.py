"""What a sweep would run and cost, and what is refused before anything starts."""
