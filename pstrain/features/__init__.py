"""Encoding of a batch's columns as what models and losses read: values, rows, labels, weights."""
