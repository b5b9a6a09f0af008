"""Which of a job's workers a reader reads from: all, or with LOCAL only those on its own host.

Pure: the caller brings the hosts. Invariant: a reader with LOCAL never has a stream to another
host, and never takes the absence of a local worker for the end of the data.
"""

from __future__ import annotations

from dataservice.errors import FailedPreconditionError
from dataservice.job_options import JobOptions
from dataservice.vocabulary import ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb


class Targets:
    """Narrows what the dispatcher answers to the workers that are targeted.

    `host_id` is the identity of the reader's host; a worker without one is on no known host.
    """

    def __init__(self, options: JobOptions, policy: ShardingPolicy, host_id: str) -> None:
        self.only_local = options.target_workers == "LOCAL"
        self._policy = policy
        self._host_id = host_id
        self._met_local = False

    def narrow(self, reply: pb.OpenIterationReply | pb.SyncReply) -> None:
        """Takes the workers of other hosts out of an answer.

        FailedPreconditionError under a static policy, whose shares come from certain workers.
        """
        if not self.only_local:
            return
        local = [worker for worker in reply.workers if self._is_local(worker)]
        remote = [worker for worker in reply.workers if not self._is_local(worker)]
        del reply.workers[:]
        reply.workers.extend(local)
        # How many of the readers are on this host is not known: perhaps none but this one.
        reply.readers = 0
        self._met_local = self._met_local or bool(reply.workers)
        if remote and self._policy.is_static:
            raise FailedPreconditionError(
                f"target_workers='LOCAL', but the worker at {remote[0].address}, which has a "
                f"share of the data, is on another host ({remote[0].host}); "
                f"ShardingPolicy.{self._policy.name} needs all workers of the list, so use "
                "target_workers='AUTO', or ShardingPolicy.DYNAMIC"
            )
        has_copies = self._policy is ShardingPolicy.OFF
        if has_copies and not self._met_local and isinstance(reply, pb.SyncReply):
            # Of a local copy this reader has seen nothing yet, whatever others have read.
            reply.ended = reply.iteration_finished = False

    def _is_local(self, worker: pb.WorkerInfo) -> bool:
        return bool(worker.host_id) and worker.host_id == self._host_id
