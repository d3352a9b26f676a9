"""The one command: a table of all commands of the four packages."""
