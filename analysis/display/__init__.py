"""How numbers, tables and figures look, wherever they are shown."""
