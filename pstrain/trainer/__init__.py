"""The trainer: runs closures, pulls parameters and pushes gradients."""
