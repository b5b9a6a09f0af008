"""The columns of the benchmarks' rows: their names, and how many values each field has.

Imports nothing, so that programs of other frameworks can use them too.
"""

DENSE = tuple(f"i{k}" for k in range(13))
CATEGORICAL = tuple(f"c{k}" for k in range(26))
# The number of distinct values of each field in the public Criteo Kaggle log.
CARDINALITIES = (
    *(1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194),
    *(27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
