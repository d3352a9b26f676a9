"""Programs that a policy writes: how their runs end, and what is paid for them."""
