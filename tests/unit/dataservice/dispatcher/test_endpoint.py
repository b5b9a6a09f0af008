"""The endpoint speaks the wire protocol, and its reports of the state are readable."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dataservice.dispatcher.endpoint import DispatcherEndpoint
from dataservice.dispatcher.reports import ReaderReport, WorkerReport
from dataservice.dispatcher.requests import Sync
from dataservice.monitoring.status_text import datasets_text, jobs_text, status_text
from dataservice.omissions import Omitted
from dataservice.ranges import RowMark
from dataservice.vocabulary import ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb
from tests.unit.dataservice.dispatcher.dispatcher_services import (
    add_worker,
    lease_request,
    open_reader,
    read_service,
    register,
    service_of,
)


def test_endpoint_serves_whole_job_by_wire_messages() -> None:
    endpoint = DispatcherEndpoint(service_of())
    dataset = pb.RegisterDatasetRequest(
        plan=b"pp", schema=b"s", cardinality=2, compression="LZ4", dataset_id="mine"
    )
    assert endpoint.register_dataset(dataset).dataset_id == "mine"
    found = endpoint.get_dataset(pb.GetDatasetRequest(dataset_id="mine"))
    assert (found.plan, found.schema, found.cardinality, found.compression) == (
        b"pp",
        b"s",
        2,
        "LZ4",
    )
    worker = endpoint.register_worker(pb.RegisterWorkerRequest(address="a:1", host="a", pid=4))
    opened = endpoint.open_iteration(
        pb.OpenIterationRequest(dataset_id="mine", policy=1, reader_id="r1")
    )
    assert (opened.reader_id, opened.dataset_id, opened.schema) == ("r1", "mine", b"s")
    assert [(w.worker_id, w.address) for w in opened.workers] == [(worker.worker_id, "a:1")]
    leased = endpoint.lease_windows(
        pb.LeaseWindowsRequest(
            worker_id=worker.worker_id, iteration_id=opened.iteration_id, reader_id="r1", count=1
        )
    )
    (window,) = leased.windows
    assert (window.window, window.generation, window.start_row, window.epoch) == (0, 0, 0, 0)
    assert (window.splits[0].start, window.splits[0].stop, window.splits[0].rows) == (0, 1, 1)
    assert not window.splits[0].HasField("path")
    synced = endpoint.sync(
        pb.SyncRequest(
            reader_id="r1",
            iteration_id=opened.iteration_id,
            consumed=[pb.Mark(window=0, row=1, final=True)],
            broken_worker_ids=[worker.worker_id],
            rows_consumed=1,
        )
    )
    assert (synced.ended, synced.iteration_finished, list(synced.fences)) == (False, False, [])
    assert "mine" in endpoint.list_jobs(pb.ListJobsRequest()).json
    endpoint.release_reader(
        pb.ReleaseReaderRequest(reader_id="r1", iteration_id=opened.iteration_id)
    )
    assert endpoint.list_jobs(pb.ListJobsRequest()).json == "[]"


def test_reader_is_told_whether_a_window_is_leased_for_it() -> None:
    service = read_service(readers=("r1", "r2"))
    endpoint = DispatcherEndpoint(service)

    def leased(**news: Sequence[object]) -> tuple[bool, int]:
        reply = endpoint.sync(pb.SyncRequest(reader_id="r1", iteration_id="i1", **news))
        return reply.is_leased, len(reply.fences)

    assert leased() == (False, 0)
    for reader in ("r2", "r1"):
        service.lease_windows(lease_request(reader))
    assert leased() == (True, 0)
    assert leased(broken_worker_ids=["w1"]) == (False, 1), "the lease ends as the stream broke"
    assert leased(released=[pb.Mark(window=1)]) == (False, 0), "the window has yet to be leased"
    for number in (1, 2):
        service.heartbeat("w1", (), WorkerReport(), number)  # it lives after all
    service.lease_windows(lease_request("r1"))
    assert leased() == (True, 0)
    received = pb.Mark(window=1, generation=1, row=1, final=True)
    assert leased(released=[received]) == (False, 0), "all rows came and are not consumed yet"


def test_new_reader_is_told_current_workers() -> None:
    service = service_of()
    endpoint = DispatcherEndpoint(service)
    register(service)

    def opened(reader_id: str) -> list[str]:
        request = pb.OpenIterationRequest(
            dataset_id="1000", policy=1, job_name="j", reader_id=reader_id
        )
        return [worker.address for worker in endpoint.open_iteration(request).workers]

    def synced(reader_id: str) -> list[str]:
        """Returns the workers that a reader is told which knows no version of the set."""
        (iteration_id,) = service._state.iterations
        request = pb.SyncRequest(reader_id=reader_id, iteration_id=iteration_id)
        return [worker.address for worker in endpoint.sync(request).workers]

    assert opened("r1") == []
    add_worker(service, "w1")
    assert opened("r2") == opened("r3") == synced("r1") == ["w1:1"]
    add_worker(service, "w2")
    assert opened("r4") == synced("r4") == ["w1:1", "w2:1"]
    service.leave("w1")
    assert opened("r5") == synced("r1") == ["w2:1"]


def told(reply: pb.SyncReply | pb.SyncRoundsReply) -> tuple[int, bool, list[str], list[str]]:
    """Returns the version of the workers, whether they are changes, and which came and went."""
    came = [worker.worker_id for worker in reply.workers]
    return reply.members_version, reply.members_differ, came, list(reply.lost_worker_ids)


def test_consumer_of_coordinated_reads_is_told_changes_of_workers_only() -> None:
    service = service_of()
    endpoint = DispatcherEndpoint(service)
    register(service, cardinality=-1)
    add_worker(service, "w1")
    opened = endpoint.open_iteration(
        pb.OpenIterationRequest(
            dataset_id="1000",
            policy=int(ShardingPolicy.OFF),
            job_name="j",
            reader_id="r1",
            options=pb.JobOptions(num_consumers=1),
        )
    )

    def synced(known: int) -> tuple[int, bool, list[str], list[str]]:
        request = pb.SyncRoundsRequest(
            reader_id="r1", iteration_id=opened.iteration_id, window=2, members_known=known
        )
        return told(endpoint.sync_rounds(request))

    assert synced(0) == (opened.members_version, False, ["w1"], [])
    assert synced(opened.members_version) == (opened.members_version, True, [], [])
    add_worker(service, "w2")
    service.leave("w1")
    version, *changes = synced(opened.members_version)
    assert changes == [True, ["w2"], ["w1"]]
    assert synced(version) == (version, True, [], [])


def test_reader_of_static_shares_is_told_workers_only_after_changes() -> None:
    service = service_of(worker_addresses=["w1:1", "w2:1"])
    endpoint = DispatcherEndpoint(service)
    register(service)
    for name in ("w1", "w2"):
        add_worker(service, name)
    for job in ("j1", "j2"):
        open_reader(service, f"r-{job}", policy=ShardingPolicy.DATA, job_name=job, iteration_id=job)

    def synced(job: str, known: int) -> tuple[int, bool, list[str], list[str]]:
        request = pb.SyncRequest(reader_id=f"r-{job}", iteration_id=job, members_known=known)
        return told(endpoint.sync(request))

    known = synced("j1", 0)[0]
    assert synced("j1", 0) == (known, False, ["w1", "w2"], [])
    assert synced("j1", known) == (known, True, [], [])
    # What the first job has left of its workers is not what the second one has left of them.
    service.finish_task("w1", "j1")
    service.finish_task("w2", "j2")
    versions = [synced("j1", known)[0], synced("j2", known)[0]]
    assert len({known, *versions}) == 3
    assert synced("j1", known)[1:] == (False, ["w2"], [])
    assert synced("j1", versions[0]) == (versions[0], True, [], [])
    service.leave("w1")
    assert synced("j2", versions[1])[1:] == (False, [], [])


def test_status_and_listings_are_rendered_as_text() -> None:
    endpoint = DispatcherEndpoint(service_of())
    assert "0 workers" in status_text(endpoint.get_status(pb.GetStatusRequest()).json)
    assert jobs_text(endpoint.list_jobs(pb.ListJobsRequest()).json) == "no jobs"
    assert datasets_text(endpoint.list_datasets(pb.ListDatasetsRequest()).json) == "no datasets"
    service = read_service()
    service.heartbeat("w1", (), WorkerReport(rows_sent=1_234, rate_rows_per_s=56.7))
    service.lease_windows(lease_request())
    request = Sync(reader_id="r1", iteration_id="i1", consumed=(RowMark(0, 0, 1, True),))
    service.sync(request, ReaderReport(rows_consumed=1, wait_share=0.25))
    endpoint = DispatcherEndpoint(service)
    assert status_text(endpoint.get_status(pb.GetStatusRequest()).json).splitlines() == [
        "1 worker, 1 job, 1 dataset",
        "2 clients; a heartbeat of each is due every 1 s; a silent worker counts as lost after "
        "10 s, a silent reader after 60 s",
        "",
        "worker  rows sent  rows/s  busy  windows  buffered",
        "w1:1        1,234      57    0%        0   0.0 MiB",
        "",
        "job    state    age  dataset  policy   epoch     progress  rows  readers  waiting  enough",
        "train  reading  0 s     1000  DYNAMIC      0  1/4 windows     1        1      25%       -",
        "",
        "reader         job    epoch  rows  waiting  missed",
        "process 0 on   train      0     1      25%       0",
    ]


def test_dataset_listing_renders_infinite_and_unknown_cardinality() -> None:
    described = {"dataset_id": "1000", "compression": "AUTO", "plan_bytes": 1_943}
    sizes = [{**described, "cardinality": cardinality} for cardinality in (12_000, -1, -2)]
    lines = datasets_text(json.dumps(sizes)).splitlines()[1:]
    assert [line.split()[1] for line in lines] == ["12,000", "endless", "-"]


def test_control_characters_in_user_given_names_are_escaped() -> None:
    service = service_of()
    register(service)
    add_worker(service)
    open_reader(service, job_name="red\x1b[31m\nrow\u202e")
    endpoint = DispatcherEndpoint(service)
    status = status_text(endpoint.get_status(pb.GetStatusRequest()).json)
    listing = json.loads(endpoint.list_jobs(pb.ListJobsRequest()).json)
    listing[0]["iterations"][0]["skipped"] = Omitted.of_function(1, "line\n\x07ring").to_json()
    listed = jobs_text(json.dumps(listing))
    assert status.count("red\\x1b[31m\\nrow\\u202e  ") == 2
    assert "line\n  \\x07ring" in listed
    for text in (status, listed):
        assert all(line.isprintable() for line in text.splitlines())
