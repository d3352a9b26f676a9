"""The bias report: evidence, words, tables, figures, page."""
