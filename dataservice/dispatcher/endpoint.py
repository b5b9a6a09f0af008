"""The dispatcher's service on the wire: messages become values, values become messages.

Makes no decisions and keeps no state of the service. Invariant: each RPC has one method, named
after it; the RPC layer carries the errors that it raises.
"""

from __future__ import annotations

import json
import math
from typing import TypeVar

from dataservice.dispatcher.autoscale import Production
from dataservice.dispatcher.messages import (
    job_options,
    lease_message,
    omitted_of,
    row_marks,
    saved_position,
    sharding_policy,
    written_window,
)
from dataservice.dispatcher.packed_workers import PackedWorkers, worker_messages
from dataservice.dispatcher.reports import ReaderReport, WorkerReport
from dataservice.dispatcher.requests import (
    LeaseWindows,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
    Sync,
    SyncRounds,
)
from dataservice.dispatcher.service import DispatcherService
from dataservice.dispatcher.snapshot_requests import StartSnapshot, WorkOnSnapshot
from dataservice.dispatcher.worker_set import WorkersUpdate
from dataservice.runtime.identity import new_id
from dataservice.vocabulary import (
    EXACTLY_ONCE,
    PROTOCOL_VERSION,
    DatasetId,
    IterationId,
    JobId,
    ReaderId,
    SnapshotId,
    WorkerId,
)
from dataservice.wire import dispatcher_pb2 as pb

Reply = TypeVar("Reply", pb.OpenIterationReply, pb.SyncReply, pb.SyncRoundsReply)


class DispatcherEndpoint:
    """Implements the `Dispatcher` service of the .proto file."""

    def __init__(self, service: DispatcherService) -> None:
        self._service = service
        self._dispatcher_id = new_id("dispatcher")
        self._packed_workers = PackedWorkers()

    def get_version(self, _: pb.GetVersionRequest) -> pb.GetVersionReply:
        return pb.GetVersionReply(protocol=PROTOCOL_VERSION, dispatcher_id=self._dispatcher_id)

    def register_dataset(self, request: pb.RegisterDatasetRequest) -> pb.RegisterDatasetReply:
        dataset_id = self._service.register_dataset(
            RegisterDataset(
                plan=request.plan,
                schema=request.schema,
                cardinality=request.cardinality,
                compression=request.compression,
                dataset_id=request.dataset_id if request.HasField("dataset_id") else None,
                fingerprint=request.fingerprint,
            )
        )
        return pb.RegisterDatasetReply(dataset_id=dataset_id)

    def get_dataset(self, request: pb.GetDatasetRequest) -> pb.GetDatasetReply:
        dataset = self._service.get_dataset(DatasetId(request.dataset_id))
        return pb.GetDatasetReply(
            plan=dataset.plan,
            schema=dataset.schema,
            cardinality=dataset.cardinality,
            compression=dataset.compression,
            fingerprint=dataset.fingerprint,
        )

    def register_worker(self, request: pb.RegisterWorkerRequest) -> pb.RegisterWorkerReply:
        worker_id = WorkerId(new_id("worker"))
        place = self._service.register_worker(
            RegisterWorker(
                worker_id=worker_id,
                address=request.address,
                host=request.host,
                pid=request.pid,
                host_id=request.host_id,
                formerly=WorkerId(request.formerly) if request.formerly else None,
            )
        )
        return pb.RegisterWorkerReply(
            worker_id=worker_id,
            lease_s=self._service.presence.worker_timeout_s,
            heartbeat_interval_ms=self._interval_ms(worker_id),
            place=place.index,
            places=place.count,
        )

    def worker_heartbeat(self, request: pb.WorkerHeartbeatRequest) -> pb.WorkerHeartbeatReply:
        if request.leaving:
            self._service.leave(WorkerId(request.worker_id))
            return pb.WorkerHeartbeatReply(ended_iteration_ids=request.iteration_ids)
        answer = self._service.heartbeat(
            WorkerId(request.worker_id),
            [IterationId(iteration_id) for iteration_id in request.iteration_ids],
            WorkerReport(
                rows_sent=request.rows_sent,
                rate_rows_per_s=request.rate_rows_per_s,
                buffered_bytes=request.buffered_bytes,
                production=tuple(
                    Production(IterationId(part.iteration_id), part.rows_per_s, part.busy_share)
                    for part in request.production
                ),
            ),
            request.number,
            [SnapshotId(snapshot_id) for snapshot_id in request.snapshot_ids],
        )
        return pb.WorkerHeartbeatReply(
            ended_iteration_ids=answer.ended,
            snapshot_ids=answer.snapshots,
            heartbeat_interval_ms=self._interval_ms(request.worker_id),
        )

    def lease_windows(self, request: pb.LeaseWindowsRequest) -> pb.LeaseWindowsReply:
        answer = self._service.lease_windows(
            LeaseWindows(
                worker_id=WorkerId(request.worker_id),
                iteration_id=IterationId(request.iteration_id),
                reader_id=ReaderId(request.reader_id),
                count=request.count,
                returned=row_marks(request.returned),
                sequence=request.sequence,
            ),
            request.wait_s,
        )
        leases = [lease_message(lease) for lease in answer.leases]
        pause_ms = math.ceil(1_000 * answer.pause_s)
        return pb.LeaseWindowsReply(windows=leases, ended=answer.ended, pause_ms=pause_ms)

    def finish_task(self, request: pb.FinishTaskRequest) -> pb.FinishTaskReply:
        self._service.finish_task(WorkerId(request.worker_id), IterationId(request.iteration_id))
        return pb.FinishTaskReply()

    def open_iteration(self, request: pb.OpenIterationRequest) -> pb.OpenIterationReply:
        reader_id = ReaderId(request.reader_id or new_id("reader"))
        answer, dataset, workers = self._service.openings.open(
            OpenIteration(
                dataset_id=DatasetId(request.dataset_id),
                policy=sharding_policy(request.policy),
                job_name=request.job_name if request.HasField("job_name") else None,
                repetition=request.repetition,
                delivery=request.delivery or EXACTLY_ONCE,
                options=job_options(request.options),
                reader_id=reader_id,
                job_id=JobId(new_id("job")),
                iteration_id=IterationId(new_id("iteration")),
                reader_host=request.reader_host,
                reader_pid=request.reader_pid,
                program_age_s=request.program_age_s,
                dataset_age_s=request.dataset_age_s,
                position=saved_position(request.position) if request.HasField("position") else None,
                consumer_index=request.consumer_index,
                owner=request.owner,
                fingerprint=request.fingerprint,
                restores=request.restores,
            )
        )
        reply = pb.OpenIterationReply(
            job_id=answer.job_id,
            iteration_id=answer.iteration_id,
            reader_id=reader_id,
            schema=dataset.schema,
            compression=dataset.compression,
            cardinality=dataset.cardinality,
            heartbeat_s=self._service.presence.reader_heartbeat_s,
            heartbeat_interval_ms=self._interval_ms(reader_id),
            members_version=workers.version,
            readers=workers.readers,
            dataset_id=dataset.dataset_id,
            num_shards=answer.num_shards,
            listing=answer.listing,
            notice=answer.notice,
            division=answer.division,
        )
        return self._with_workers(reply, workers)

    def describe_position(self, request: pb.DescribePositionRequest) -> pb.Position:
        answer = self._service.describe_position(
            ReaderId(request.reader_id), IterationId(request.iteration_id)
        )
        consumed = json.dumps(answer.base.to_json())
        return pb.Position(consumed_json=consumed, peers=answer.readers)

    def sync(self, request: pb.SyncRequest) -> pb.SyncReply:
        answer, workers = self._service.sync(
            Sync(
                reader_id=ReaderId(request.reader_id),
                iteration_id=IterationId(request.iteration_id),
                consumed=row_marks(request.consumed),
                released=row_marks(request.released),
                broken_worker_ids=tuple(map(WorkerId, request.broken_worker_ids)),
            ),
            ReaderReport(
                rows_consumed=request.rows_consumed,
                wait_share=request.wait_share,
                trainer_id=request.trainer_id,
                elements_missed=request.elements_missed,
                omitted=omitted_of(request.omitted),
            ),
            request.members_known,
        )
        reply = pb.SyncReply(
            members_version=workers.version,
            readers=workers.readers,
            members_differ=workers.is_change,
            lost_worker_ids=workers.lost,
            heartbeat_interval_ms=self._interval_ms(request.reader_id),
            fences=[pb.Mark(**mark._asdict()) for mark in answer.fences],
            ended=answer.ended,
            iteration_finished=answer.iteration_finished,
            missing_workers=answer.missing,
            awaited_readers=answer.awaited,
            quarantined=[pb.Quarantined(**entry._asdict()) for entry in answer.quarantined],
            is_leased=answer.is_leased,
        )
        return self._with_workers(reply, workers)

    def sync_rounds(self, request: pb.SyncRoundsRequest) -> pb.SyncRoundsReply:
        answer, workers = self._service.sync_rounds(
            SyncRounds(
                reader_id=ReaderId(request.reader_id),
                iteration_id=IterationId(request.iteration_id),
                version=request.version,
                received=request.received,
                consumed=request.consumed,
                sought=request.sought,
                window=request.window,
                roll=request.roll,
                broken_worker_ids=tuple(map(WorkerId, request.broken_worker_ids)),
            ),
            ReaderReport(rows_consumed=request.rows_consumed, wait_share=request.wait_share),
            request.members_known,
        )
        reply = pb.SyncRoundsReply(
            members_version=workers.version,
            members_differ=workers.is_change,
            lost_worker_ids=workers.lost,
            blocks=[pb.RoundBlock(**block._asdict()) for block in answer.blocks],
            version=answer.version,
            complete=answer.complete,
            low=answer.low,
            begin=answer.begin,
            missing_consumers=answer.missing,
            late_consumers=answer.late,
            roll=answer.roll,
            heartbeat_interval_ms=self._interval_ms(request.reader_id),
        )
        return self._with_workers(reply, workers)

    def release_reader(self, request: pb.ReleaseReaderRequest) -> pb.ReleaseReaderReply:
        self._service.release_reader(
            ReaderId(request.reader_id), row_marks(request.consumed), omitted_of(request.omitted)
        )
        return pb.ReleaseReaderReply()

    def release_owned(self, request: pb.ReleaseOwnedRequest) -> pb.ReleaseOwnedReply:
        consumed = {ReaderId(r.reader_id): row_marks(r.consumed) for r in request.readers}
        return pb.ReleaseOwnedReply(released=self._service.owners.release(request.owner, consumed))

    def start_snapshot(self, request: pb.StartSnapshotRequest) -> pb.StartSnapshotReply:
        snapshot_id, attached = self._service.snapshots.start(
            StartSnapshot(
                snapshot_id=SnapshotId(request.snapshot_id or new_id("snapshot")),
                dataset_id=DatasetId(request.dataset_id),
                path=request.path,
                compression=request.compression,
                storage_options=request.storage_options or "{}",
                found_id=request.found_id,
            )
        )
        return pb.StartSnapshotReply(snapshot_id=snapshot_id, attached=attached)

    def work_on_snapshot(self, request: pb.WorkOnSnapshotRequest) -> pb.WorkOnSnapshotReply:
        answer = self._service.snapshots.work(
            WorkOnSnapshot(
                worker_id=WorkerId(request.worker_id),
                snapshot_id=SnapshotId(request.snapshot_id),
                count=request.count,
                holding=tuple(request.holding),
                written=tuple(map(written_window, request.written)),
                error=request.error,
                marked=request.marked,
            ),
            request.rows_under_way,
        )
        return pb.WorkOnSnapshotReply(
            windows=[lease_message(lease) for lease in answer.leases],
            over=answer.over,
            marker="" if answer.marker is None else answer.marker.name,
            content="" if answer.marker is None else answer.marker.content,
        )

    def get_snapshot(self, request: pb.GetSnapshotRequest) -> pb.GetSnapshotReply:
        task, progress = self._service.snapshots.describe(SnapshotId(request.snapshot_id))
        return pb.GetSnapshotReply(
            json=json.dumps(progress),
            dataset_id=task.dataset_id,
            path=task.path,
            compression=task.compression,
            storage_options=task.storage_options,
            whole=task.is_whole,
            error=task.error,
            windows=-1 if task.windows is None else task.windows,
        )

    def cancel_snapshot(self, request: pb.CancelSnapshotRequest) -> pb.CancelSnapshotReply:
        self._service.snapshots.cancel(SnapshotId(request.snapshot_id))
        return pb.CancelSnapshotReply()

    def list_snapshots(self, _: pb.ListSnapshotsRequest) -> pb.ListSnapshotsReply:
        return pb.ListSnapshotsReply(json=json.dumps(self._service.snapshots.list()))

    def _interval_ms(self, client_id: str) -> int:
        return round(1_000 * self._service.interval_s(client_id))

    def _with_workers(self, reply: Reply, update: WorkersUpdate) -> Reply:
        if update.is_change or not update.version:
            reply.workers.extend(worker_messages(update.workers))
        else:
            self._packed_workers.add_to(reply, update.workers, update.version)
        return reply

    def get_status(self, _: pb.GetStatusRequest) -> pb.GetStatusReply:
        return pb.GetStatusReply(json=json.dumps(self._service.overview.status()))

    def list_jobs(self, _: pb.ListJobsRequest) -> pb.ListJobsReply:
        return pb.ListJobsReply(json=json.dumps(self._service.overview.jobs()))

    def delete_job(self, request: pb.DeleteJobRequest) -> pb.DeleteJobReply:
        self._service.overview.delete_job(request.job_name)
        return pb.DeleteJobReply()

    def list_datasets(self, _: pb.ListDatasetsRequest) -> pb.ListDatasetsReply:
        return pb.ListDatasetsReply(json=json.dumps(self._service.overview.datasets()))

    def delete_dataset(self, request: pb.DeleteDatasetRequest) -> pb.DeleteDatasetReply:
        self._service.overview.delete_dataset(DatasetId(request.dataset_id))
        return pb.DeleteDatasetReply()
