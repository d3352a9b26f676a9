"""An OpenAI-compatible endpoint, asked: wire, limits, retries, dialects."""
