"""Where a program learns its cluster from besides TF_CONFIG: others, Slurm, Kubernetes."""
