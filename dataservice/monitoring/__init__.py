"""What a dispatcher tells of itself, for people and for monitoring systems."""
