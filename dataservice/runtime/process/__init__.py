"""The life of a process: the children that it starts, its signals and interrupts, its end."""
