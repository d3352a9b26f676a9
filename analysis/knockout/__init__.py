"""What became of a shift once its part of the judge's error was taken out."""
