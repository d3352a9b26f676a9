"""From what a step pushes to where a run ends."""

SCALES = ("plain", "adam")
"""How much of its push a step takes: ``plain`` the learning rate, less what gradient clipping took;
``adam`` learning rate / gradient norm. Adam divides a step by the gradient's own size, so the same
covariance moves a policy further where gradients are small, and clipping does not matter."""
