"""A training cluster whose processes tests may kill: one for several tests, whole for each."""

from __future__ import annotations

import pstrain as ps


def revived(cluster: ps.LocalCluster) -> ps.LocalCluster:
    """Starts again what does not run; returns the cluster."""
    for task in cluster.status():
        if not task["alive"]:
            cluster.restart(task["role"], task["index"])
    return cluster
