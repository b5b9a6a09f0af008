"""What the machine and its control groups let this process use: cores, memory, open files."""
