"""The demonstration: real flight records, from files to a trained model."""
