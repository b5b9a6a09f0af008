"""How a plan is divided among data workers.

Under ShardingPolicy.DYNAMIC, `linearise` brings the plan into the form `linear`: `segments`, each a
source with operators, whose `splits` are put into windows. Under the policies for a fixed list of
workers, `static_sharding` rewrites the plan into the share of each. Knows no workers. Invariant:
all parts together yield the rows of the plan.
"""
