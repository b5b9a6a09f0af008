"""Gradients of the variables that a step has read, from the operations that it has recorded."""
