"""Training on tables of a user: which columns there are, how they are prepared, what is kept."""
