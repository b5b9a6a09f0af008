"""From what a step has computed to the gradients of the variables that it read."""
