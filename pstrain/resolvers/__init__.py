"""Resolvers, from which a program learns its cluster: TF_CONFIG, Slurm, Kubernetes, or several."""
