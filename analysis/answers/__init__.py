"""Single answers of a study: which are shown, the page that shows them, and files for others."""
