"""What people get to read of a run: lines of progress, and files of results in their folders."""
