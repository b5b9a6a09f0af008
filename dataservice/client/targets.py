"""Which of a job's workers a reader reads from: all, or with LOCAL only those on its own host.

Responsible for filtering the dispatcher's replies. Pure: knows no network; the caller passes the
host's identity in. Invariant: a reader with LOCAL never has a stream to another host, and never
takes the absence of a local worker for the end of the data.
"""

from __future__ import annotations

from dataservice.errors import FailedPreconditionError
from dataservice.job_options import JobOptions
from dataservice.vocabulary import ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb


class Targets:
    """The filter that narrows the dispatcher's replies to the targeted workers.

    `host_id` is the identity of the reader's host. A worker without a host identity is never local.
    """

    def __init__(self, options: JobOptions, policy: ShardingPolicy, host_id: str) -> None:
        self.only_local = options.target_workers == "LOCAL"
        self._policy = policy
        self._host_id = host_id
        self._met_local = False

    def narrow(self, reply: pb.OpenIterationReply | pb.SyncReply) -> None:
        """Removes workers on other hosts from a reply, if only local workers are targeted.

        Raises FailedPreconditionError for such a worker under a static policy, whose shares each
        come from one certain worker.
        """
        if not self.only_local:
            return
        local = [worker for worker in reply.workers if self._is_local(worker)]
        remote = [worker for worker in reply.workers if not self._is_local(worker)]
        del reply.workers[:]
        reply.workers.extend(local)
        # 0, for unknown: this reader may be the only one on this host.
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
            # Under OFF each worker has a copy of all rows. This reader has met no local worker, so
            # the end of other copies is not the end for it.
            reply.ended = reply.iteration_finished = False

    def _is_local(self, worker: pb.WorkerInfo) -> bool:
        return bool(worker.host_id) and worker.host_id == self._host_id
