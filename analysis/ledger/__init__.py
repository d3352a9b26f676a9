"""How a judge's error becomes advantages, run by run and step by step."""
