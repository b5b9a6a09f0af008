"""Cluster resolvers for TF_CONFIG, Slurm and Kubernetes, and the union of several resolvers."""
