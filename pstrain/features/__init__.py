"""From columns of a batch to what models read: dense values, rows of tables, labels."""
