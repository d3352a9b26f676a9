"""What the commands of `analysis` print: the numbers of one study as lines of text."""
