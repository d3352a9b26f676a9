"""What prepares the rows of tasks: verifiable sets, and files of prompts."""
