"""The systems that ours is measured against, each run in an interpreter that has it installed."""
