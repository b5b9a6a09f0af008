"""Encoding of a batch's columns as what models read: dense values, rows of tables, labels."""
