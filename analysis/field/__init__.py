"""What papers of the field report, from this study's records."""
