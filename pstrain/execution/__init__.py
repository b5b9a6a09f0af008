"""Where the functions of ``fit``, ``evaluate`` and ``predict`` run: here, or on trainers."""
