"""The commands of ``pstrain``, one per module: ``add_parser`` and ``run``."""
