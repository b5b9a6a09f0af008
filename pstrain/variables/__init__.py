"""Variables: how they are made, named, cut into shards, placed, and asked for their values."""
