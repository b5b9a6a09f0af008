"""Ends right after a text that Arrow failed to open, while it still reads ahead of it.

The argument is a file of JSON lines, the first of which is too long for Arrow.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from dataservice import Dataset
from dataservice.errors import SourceError

if __name__ == "__main__":
    try:
        Dataset.from_json(sys.argv[1], pa.schema([("a", pa.string())])).to_table()
    except SourceError:
        print("it is refused")
