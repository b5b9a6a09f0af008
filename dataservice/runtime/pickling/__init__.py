"""How functions are pickled for other processes, and why some of them cannot be."""
