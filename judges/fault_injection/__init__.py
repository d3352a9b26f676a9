"""An endpoint that fails in every way that is known, to see what a judge's client makes of it."""
