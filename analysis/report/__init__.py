"""The bias report of a study: its evidence, and the words, tables, figures and page made of it."""
