"""What runs within the sandbox. Standard library only; never imports the rest of the project."""
