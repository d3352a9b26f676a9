"""What a reference, asked about a random share of the answers, says of the judges of a study."""
