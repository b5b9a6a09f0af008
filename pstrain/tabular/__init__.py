"""Training on a user's tables: finding the columns, preparing them, keeping the model."""
