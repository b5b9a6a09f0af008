"""Variables: how they are created, named, cut into shards, placed, read and changed."""
