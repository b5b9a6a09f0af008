from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetVersionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetVersionReply(_message.Message):
    __slots__ = ("protocol", "dispatcher_id")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    DISPATCHER_ID_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    dispatcher_id: str
    def __init__(self, protocol: _Optional[int] = ..., dispatcher_id: _Optional[str] = ...) -> None: ...

class RegisterDatasetRequest(_message.Message):
    __slots__ = ("plan", "schema", "cardinality", "compression", "dataset_id", "fingerprint")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    CARDINALITY_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    plan: bytes
    schema: bytes
    cardinality: int
    compression: str
    dataset_id: str
    fingerprint: str
    def __init__(self, plan: _Optional[bytes] = ..., schema: _Optional[bytes] = ..., cardinality: _Optional[int] = ..., compression: _Optional[str] = ..., dataset_id: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class RegisterDatasetReply(_message.Message):
    __slots__ = ("dataset_id",)
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    def __init__(self, dataset_id: _Optional[str] = ...) -> None: ...

class GetDatasetRequest(_message.Message):
    __slots__ = ("dataset_id",)
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    def __init__(self, dataset_id: _Optional[str] = ...) -> None: ...

class GetDatasetReply(_message.Message):
    __slots__ = ("plan", "schema", "cardinality", "compression", "fingerprint")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    CARDINALITY_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    plan: bytes
    schema: bytes
    cardinality: int
    compression: str
    fingerprint: str
    def __init__(self, plan: _Optional[bytes] = ..., schema: _Optional[bytes] = ..., cardinality: _Optional[int] = ..., compression: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class RegisterWorkerRequest(_message.Message):
    __slots__ = ("address", "pid", "host", "host_id", "formerly")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    FORMERLY_FIELD_NUMBER: _ClassVar[int]
    address: str
    pid: int
    host: str
    host_id: str
    formerly: str
    def __init__(self, address: _Optional[str] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., host_id: _Optional[str] = ..., formerly: _Optional[str] = ...) -> None: ...

class RegisterWorkerReply(_message.Message):
    __slots__ = ("worker_id", "lease_s", "place", "places", "heartbeat_interval_ms")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    lease_s: float
    place: int
    places: int
    heartbeat_interval_ms: int
    def __init__(self, worker_id: _Optional[str] = ..., lease_s: _Optional[float] = ..., place: _Optional[int] = ..., places: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ...) -> None: ...

class WorkerHeartbeatRequest(_message.Message):
    __slots__ = ("worker_id", "iteration_ids", "rows_sent", "rate_rows_per_s", "buffered_bytes", "leaving", "production", "snapshot_ids", "number")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ITERATION_IDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_SENT_FIELD_NUMBER: _ClassVar[int]
    RATE_ROWS_PER_S_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    PRODUCTION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_IDS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    iteration_ids: _containers.RepeatedScalarFieldContainer[str]
    rows_sent: int
    rate_rows_per_s: float
    buffered_bytes: int
    leaving: bool
    production: _containers.RepeatedCompositeFieldContainer[Production]
    snapshot_ids: _containers.RepeatedScalarFieldContainer[str]
    number: int
    def __init__(self, worker_id: _Optional[str] = ..., iteration_ids: _Optional[_Iterable[str]] = ..., rows_sent: _Optional[int] = ..., rate_rows_per_s: _Optional[float] = ..., buffered_bytes: _Optional[int] = ..., leaving: bool = ..., production: _Optional[_Iterable[_Union[Production, _Mapping]]] = ..., snapshot_ids: _Optional[_Iterable[str]] = ..., number: _Optional[int] = ...) -> None: ...

class Production(_message.Message):
    __slots__ = ("iteration_id", "rows_per_s", "busy_share")
    ITERATION_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_S_FIELD_NUMBER: _ClassVar[int]
    BUSY_SHARE_FIELD_NUMBER: _ClassVar[int]
    iteration_id: str
    rows_per_s: float
    busy_share: float
    def __init__(self, iteration_id: _Optional[str] = ..., rows_per_s: _Optional[float] = ..., busy_share: _Optional[float] = ...) -> None: ...

class WorkerHeartbeatReply(_message.Message):
    __slots__ = ("ended_iteration_ids", "snapshot_ids", "heartbeat_interval_ms")
    ENDED_ITERATION_IDS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_IDS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    ended_iteration_ids: _containers.RepeatedScalarFieldContainer[str]
    snapshot_ids: _containers.RepeatedScalarFieldContainer[str]
    heartbeat_interval_ms: int
    def __init__(self, ended_iteration_ids: _Optional[_Iterable[str]] = ..., snapshot_ids: _Optional[_Iterable[str]] = ..., heartbeat_interval_ms: _Optional[int] = ...) -> None: ...

class Split(_message.Message):
    __slots__ = ("segment", "path", "row_groups", "start", "stop", "rows", "size_bytes", "version")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    ROW_GROUPS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    segment: int
    path: str
    row_groups: _containers.RepeatedScalarFieldContainer[int]
    start: int
    stop: int
    rows: int
    size_bytes: int
    version: str
    def __init__(self, segment: _Optional[int] = ..., path: _Optional[str] = ..., row_groups: _Optional[_Iterable[int]] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., rows: _Optional[int] = ..., size_bytes: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class WindowLease(_message.Message):
    __slots__ = ("window", "generation", "start_row", "epoch", "window_in_epoch", "splits")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    START_ROW_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WINDOW_IN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    window: int
    generation: int
    start_row: int
    epoch: int
    window_in_epoch: int
    splits: _containers.RepeatedCompositeFieldContainer[Split]
    def __init__(self, window: _Optional[int] = ..., generation: _Optional[int] = ..., start_row: _Optional[int] = ..., epoch: _Optional[int] = ..., window_in_epoch: _Optional[int] = ..., splits: _Optional[_Iterable[_Union[Split, _Mapping]]] = ...) -> None: ...

class LeaseWindowsRequest(_message.Message):
    __slots__ = ("worker_id", "iteration_id", "reader_id", "count", "wait_s", "returned", "sequence")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ITERATION_ID_FIELD_NUMBER: _ClassVar[int]
    READER_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    iteration_id: str
    reader_id: str
    count: int
    wait_s: float
    returned: _containers.RepeatedCompositeFieldContainer[Mark]
    sequence: int
    def __init__(self, worker_id: _Optional[str] = ..., iteration_id: _Optional[str] = ..., reader_id: _Optional[str] = ..., count: _Optional[int] = ..., wait_s: _Optional[float] = ..., returned: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ..., sequence: _Optional[int] = ...) -> None: ...

class LeaseWindowsReply(_message.Message):
    __slots__ = ("windows", "ended", "pause_ms")
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    windows: _containers.RepeatedCompositeFieldContainer[WindowLease]
    ended: bool
    pause_ms: int
    def __init__(self, windows: _Optional[_Iterable[_Union[WindowLease, _Mapping]]] = ..., ended: bool = ..., pause_ms: _Optional[int] = ...) -> None: ...

class FinishTaskRequest(_message.Message):
    __slots__ = ("worker_id", "iteration_id")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ITERATION_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    iteration_id: str
    def __init__(self, worker_id: _Optional[str] = ..., iteration_id: _Optional[str] = ...) -> None: ...

class FinishTaskReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenIterationRequest(_message.Message):
    __slots__ = ("dataset_id", "policy", "job_name", "repetition", "delivery", "reader_host", "reader_pid", "reader_id", "options", "program_age_s", "dataset_age_s", "consumer_index", "position", "owner", "fingerprint", "restores")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    REPETITION_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    READER_HOST_FIELD_NUMBER: _ClassVar[int]
    READER_PID_FIELD_NUMBER: _ClassVar[int]
    READER_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_AGE_S_FIELD_NUMBER: _ClassVar[int]
    DATASET_AGE_S_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_INDEX_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    RESTORES_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    policy: int
    job_name: str
    repetition: int
    delivery: str
    reader_host: str
    reader_pid: int
    reader_id: str
    options: JobOptions
    program_age_s: float
    dataset_age_s: float
    consumer_index: int
    position: Position
    owner: str
    fingerprint: str
    restores: bool
    def __init__(self, dataset_id: _Optional[str] = ..., policy: _Optional[int] = ..., job_name: _Optional[str] = ..., repetition: _Optional[int] = ..., delivery: _Optional[str] = ..., reader_host: _Optional[str] = ..., reader_pid: _Optional[int] = ..., reader_id: _Optional[str] = ..., options: _Optional[_Union[JobOptions, _Mapping]] = ..., program_age_s: _Optional[float] = ..., dataset_age_s: _Optional[float] = ..., consumer_index: _Optional[int] = ..., position: _Optional[_Union[Position, _Mapping]] = ..., owner: _Optional[str] = ..., fingerprint: _Optional[str] = ..., restores: bool = ...) -> None: ...

class DescribePositionRequest(_message.Message):
    __slots__ = ("reader_id", "iteration_id")
    READER_ID_FIELD_NUMBER: _ClassVar[int]
    ITERATION_ID_FIELD_NUMBER: _ClassVar[int]
    reader_id: str
    iteration_id: str
    def __init__(self, reader_id: _Optional[str] = ..., iteration_id: _Optional[str] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("consumed_json", "origins", "peers", "division")
    CONSUMED_JSON_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    DIVISION_FIELD_NUMBER: _ClassVar[int]
    consumed_json: str
    origins: _containers.RepeatedScalarFieldContainer[str]
    peers: _containers.RepeatedScalarFieldContainer[str]
    division: str
    def __init__(self, consumed_json: _Optional[str] = ..., origins: _Optional[_Iterable[str]] = ..., peers: _Optional[_Iterable[str]] = ..., division: _Optional[str] = ...) -> None: ...

class JobOptions(_message.Message):
    __slots__ = ("ordered", "num_consumers", "target_workers", "cross_trainer_cache", "on_error")
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    NUM_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    TARGET_WORKERS_FIELD_NUMBER: _ClassVar[int]
    CROSS_TRAINER_CACHE_FIELD_NUMBER: _ClassVar[int]
    ON_ERROR_FIELD_NUMBER: _ClassVar[int]
    ordered: bool
    num_consumers: int
    target_workers: str
    cross_trainer_cache: bool
    on_error: str
    def __init__(self, ordered: bool = ..., num_consumers: _Optional[int] = ..., target_workers: _Optional[str] = ..., cross_trainer_cache: bool = ..., on_error: _Optional[str] = ...) -> None: ...

class OpenIterationReply(_message.Message):
    __slots__ = ("job_id", "iteration_id", "reader_id", "schema", "compression", "cardinality", "heartbeat_s", "workers", "dataset_id", "num_shards", "division", "listing", "notice", "members_version", "lost_worker_ids", "heartbeat_interval_ms", "worker_list", "readers")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ITERATION_ID_FIELD_NUMBER: _ClassVar[int]
    READER_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    CARDINALITY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARDS_FIELD_NUMBER: _ClassVar[int]
    DIVISION_FIELD_NUMBER: _ClassVar[int]
    LISTING_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOST_WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_LIST_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    iteration_id: str
    reader_id: str
    schema: bytes
    compression: str
    cardinality: int
    heartbeat_s: float
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    dataset_id: str
    num_shards: int
    division: str
    listing: str
    notice: str
    members_version: int
    lost_worker_ids: _containers.RepeatedScalarFieldContainer[str]
    heartbeat_interval_ms: int
    worker_list: bytes
    readers: int
    def __init__(self, job_id: _Optional[str] = ..., iteration_id: _Optional[str] = ..., reader_id: _Optional[str] = ..., schema: _Optional[bytes] = ..., compression: _Optional[str] = ..., cardinality: _Optional[int] = ..., heartbeat_s: _Optional[float] = ..., workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., dataset_id: _Optional[str] = ..., num_shards: _Optional[int] = ..., division: _Optional[str] = ..., listing: _Optional[str] = ..., notice: _Optional[str] = ..., members_version: _Optional[int] = ..., lost_worker_ids: _Optional[_Iterable[str]] = ..., heartbeat_interval_ms: _Optional[int] = ..., worker_list: _Optional[bytes] = ..., readers: _Optional[int] = ...) -> None: ...

class WorkerList(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("worker_id", "address", "host", "host_id")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    address: str
    host: str
    host_id: str
    def __init__(self, worker_id: _Optional[str] = ..., address: _Optional[str] = ..., host: _Optional[str] = ..., host_id: _Optional[str] = ...) -> None: ...

class Mark(_message.Message):
    __slots__ = ("window", "generation", "row", "final")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    window: int
    generation: int
    row: int
    final: bool
    def __init__(self, window: _Optional[int] = ..., generation: _Optional[int] = ..., row: _Optional[int] = ..., final: bool = ...) -> None: ...

class Omitted(_message.Message):
    __slots__ = ("function_rows", "source_rows", "splits", "files", "messages")
    FUNCTION_ROWS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ROWS_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    function_rows: int
    source_rows: int
    splits: int
    files: _containers.RepeatedScalarFieldContainer[str]
    messages: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, function_rows: _Optional[int] = ..., source_rows: _Optional[int] = ..., splits: _Optional[int] = ..., files: _Optional[_Iterable[str]] = ..., messages: _Optional[_Iterable[str]] = ...) -> None: ...

class SyncRequest(_message.Message):
    __slots__ = ("reader_id", "iteration_id", "consumed", "released", "broken_worker_ids", "idle", "rows_consumed", "wait_share", "trainer_id", "elements_missed", "omitted", "members_known")
    READER_ID_FIELD_NUMBER: _ClassVar[int]
    ITERATION_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    BROKEN_WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    ROWS_CONSUMED_FIELD_NUMBER: _ClassVar[int]
    WAIT_SHARE_FIELD_NUMBER: _ClassVar[int]
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_MISSED_FIELD_NUMBER: _ClassVar[int]
    OMITTED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    reader_id: str
    iteration_id: str
    consumed: _containers.RepeatedCompositeFieldContainer[Mark]
    released: _containers.RepeatedCompositeFieldContainer[Mark]
    broken_worker_ids: _containers.RepeatedScalarFieldContainer[str]
    idle: bool
    rows_consumed: int
    wait_share: float
    trainer_id: str
    elements_missed: int
    omitted: Omitted
    members_known: int
    def __init__(self, reader_id: _Optional[str] = ..., iteration_id: _Optional[str] = ..., consumed: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ..., released: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ..., broken_worker_ids: _Optional[_Iterable[str]] = ..., idle: bool = ..., rows_consumed: _Optional[int] = ..., wait_share: _Optional[float] = ..., trainer_id: _Optional[str] = ..., elements_missed: _Optional[int] = ..., omitted: _Optional[_Union[Omitted, _Mapping]] = ..., members_known: _Optional[int] = ...) -> None: ...

class Quarantined(_message.Message):
    __slots__ = ("window", "what", "path", "rows")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    window: int
    what: str
    path: str
    rows: int
    def __init__(self, window: _Optional[int] = ..., what: _Optional[str] = ..., path: _Optional[str] = ..., rows: _Optional[int] = ...) -> None: ...

class SyncReply(_message.Message):
    __slots__ = ("workers", "fences", "ended", "iteration_finished", "missing_workers", "awaited_readers", "quarantined", "members_version", "members_differ", "lost_worker_ids", "heartbeat_interval_ms", "worker_list", "readers", "is_leased")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    FENCES_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FINISHED_FIELD_NUMBER: _ClassVar[int]
    MISSING_WORKERS_FIELD_NUMBER: _ClassVar[int]
    AWAITED_READERS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_DIFFER_FIELD_NUMBER: _ClassVar[int]
    LOST_WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_LIST_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    IS_LEASED_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    fences: _containers.RepeatedCompositeFieldContainer[Mark]
    ended: bool
    iteration_finished: bool
    missing_workers: _containers.RepeatedScalarFieldContainer[str]
    awaited_readers: _containers.RepeatedScalarFieldContainer[str]
    quarantined: _containers.RepeatedCompositeFieldContainer[Quarantined]
    members_version: int
    members_differ: bool
    lost_worker_ids: _containers.RepeatedScalarFieldContainer[str]
    heartbeat_interval_ms: int
    worker_list: bytes
    readers: int
    is_leased: bool
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., fences: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ..., ended: bool = ..., iteration_finished: bool = ..., missing_workers: _Optional[_Iterable[str]] = ..., awaited_readers: _Optional[_Iterable[str]] = ..., quarantined: _Optional[_Iterable[_Union[Quarantined, _Mapping]]] = ..., members_version: _Optional[int] = ..., members_differ: bool = ..., lost_worker_ids: _Optional[_Iterable[str]] = ..., heartbeat_interval_ms: _Optional[int] = ..., worker_list: _Optional[bytes] = ..., readers: _Optional[int] = ..., is_leased: bool = ...) -> None: ...

class SyncRoundsRequest(_message.Message):
    __slots__ = ("reader_id", "iteration_id", "version", "received", "consumed", "sought", "window", "broken_worker_ids", "rows_consumed", "wait_share", "roll", "members_known")
    READER_ID_FIELD_NUMBER: _ClassVar[int]
    ITERATION_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    SOUGHT_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    BROKEN_WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_CONSUMED_FIELD_NUMBER: _ClassVar[int]
    WAIT_SHARE_FIELD_NUMBER: _ClassVar[int]
    ROLL_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    reader_id: str
    iteration_id: str
    version: int
    received: int
    consumed: int
    sought: int
    window: int
    broken_worker_ids: _containers.RepeatedScalarFieldContainer[str]
    rows_consumed: int
    wait_share: float
    roll: int
    members_known: int
    def __init__(self, reader_id: _Optional[str] = ..., iteration_id: _Optional[str] = ..., version: _Optional[int] = ..., received: _Optional[int] = ..., consumed: _Optional[int] = ..., sought: _Optional[int] = ..., window: _Optional[int] = ..., broken_worker_ids: _Optional[_Iterable[str]] = ..., rows_consumed: _Optional[int] = ..., wait_share: _Optional[float] = ..., roll: _Optional[int] = ..., members_known: _Optional[int] = ...) -> None: ...

class RoundBlock(_message.Message):
    __slots__ = ("first", "end", "worker_id", "generation")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    worker_id: str
    generation: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ..., worker_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class SyncRoundsReply(_message.Message):
    __slots__ = ("workers", "blocks", "version", "complete", "low", "begin", "missing_consumers", "late_consumers", "roll", "members_version", "members_differ", "lost_worker_ids", "heartbeat_interval_ms", "worker_list")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    MISSING_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    LATE_CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    ROLL_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_DIFFER_FIELD_NUMBER: _ClassVar[int]
    LOST_WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_LIST_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    blocks: _containers.RepeatedCompositeFieldContainer[RoundBlock]
    version: int
    complete: int
    low: int
    begin: int
    missing_consumers: _containers.RepeatedScalarFieldContainer[int]
    late_consumers: _containers.RepeatedScalarFieldContainer[int]
    roll: int
    members_version: int
    members_differ: bool
    lost_worker_ids: _containers.RepeatedScalarFieldContainer[str]
    heartbeat_interval_ms: int
    worker_list: bytes
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., blocks: _Optional[_Iterable[_Union[RoundBlock, _Mapping]]] = ..., version: _Optional[int] = ..., complete: _Optional[int] = ..., low: _Optional[int] = ..., begin: _Optional[int] = ..., missing_consumers: _Optional[_Iterable[int]] = ..., late_consumers: _Optional[_Iterable[int]] = ..., roll: _Optional[int] = ..., members_version: _Optional[int] = ..., members_differ: bool = ..., lost_worker_ids: _Optional[_Iterable[str]] = ..., heartbeat_interval_ms: _Optional[int] = ..., worker_list: _Optional[bytes] = ...) -> None: ...

class ReleaseReaderRequest(_message.Message):
    __slots__ = ("reader_id", "iteration_id", "consumed", "omitted")
    READER_ID_FIELD_NUMBER: _ClassVar[int]
    ITERATION_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    OMITTED_FIELD_NUMBER: _ClassVar[int]
    reader_id: str
    iteration_id: str
    consumed: _containers.RepeatedCompositeFieldContainer[Mark]
    omitted: Omitted
    def __init__(self, reader_id: _Optional[str] = ..., iteration_id: _Optional[str] = ..., consumed: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ..., omitted: _Optional[_Union[Omitted, _Mapping]] = ...) -> None: ...

class ReleaseReaderReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReaderMarks(_message.Message):
    __slots__ = ("reader_id", "consumed")
    READER_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    reader_id: str
    consumed: _containers.RepeatedCompositeFieldContainer[Mark]
    def __init__(self, reader_id: _Optional[str] = ..., consumed: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ...) -> None: ...

class ReleaseOwnedRequest(_message.Message):
    __slots__ = ("owner", "readers")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    owner: str
    readers: _containers.RepeatedCompositeFieldContainer[ReaderMarks]
    def __init__(self, owner: _Optional[str] = ..., readers: _Optional[_Iterable[_Union[ReaderMarks, _Mapping]]] = ...) -> None: ...

class ReleaseOwnedReply(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: int
    def __init__(self, released: _Optional[int] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListJobsReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class DeleteJobRequest(_message.Message):
    __slots__ = ("job_name",)
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    job_name: str
    def __init__(self, job_name: _Optional[str] = ...) -> None: ...

class DeleteJobReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDatasetsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDatasetsReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class DeleteDatasetRequest(_message.Message):
    __slots__ = ("dataset_id",)
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    def __init__(self, dataset_id: _Optional[str] = ...) -> None: ...

class DeleteDatasetReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartSnapshotRequest(_message.Message):
    __slots__ = ("dataset_id", "path", "compression", "storage_options", "found_id", "snapshot_id")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    STORAGE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    FOUND_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    path: str
    compression: str
    storage_options: str
    found_id: str
    snapshot_id: str
    def __init__(self, dataset_id: _Optional[str] = ..., path: _Optional[str] = ..., compression: _Optional[str] = ..., storage_options: _Optional[str] = ..., found_id: _Optional[str] = ..., snapshot_id: _Optional[str] = ...) -> None: ...

class StartSnapshotReply(_message.Message):
    __slots__ = ("snapshot_id", "attached")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    attached: bool
    def __init__(self, snapshot_id: _Optional[str] = ..., attached: bool = ...) -> None: ...

class SnapshotChunk(_message.Message):
    __slots__ = ("number", "rows", "size_bytes", "batches", "tag")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    number: int
    rows: int
    size_bytes: int
    batches: int
    tag: str
    def __init__(self, number: _Optional[int] = ..., rows: _Optional[int] = ..., size_bytes: _Optional[int] = ..., batches: _Optional[int] = ..., tag: _Optional[str] = ...) -> None: ...

class WrittenWindow(_message.Message):
    __slots__ = ("window", "chunks")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    window: int
    chunks: _containers.RepeatedCompositeFieldContainer[SnapshotChunk]
    def __init__(self, window: _Optional[int] = ..., chunks: _Optional[_Iterable[_Union[SnapshotChunk, _Mapping]]] = ...) -> None: ...

class WorkOnSnapshotRequest(_message.Message):
    __slots__ = ("worker_id", "snapshot_id", "count", "holding", "written", "error", "marked", "rows_under_way")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MARKED_FIELD_NUMBER: _ClassVar[int]
    ROWS_UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    snapshot_id: str
    count: int
    holding: _containers.RepeatedScalarFieldContainer[int]
    written: _containers.RepeatedCompositeFieldContainer[WrittenWindow]
    error: str
    marked: bool
    rows_under_way: int
    def __init__(self, worker_id: _Optional[str] = ..., snapshot_id: _Optional[str] = ..., count: _Optional[int] = ..., holding: _Optional[_Iterable[int]] = ..., written: _Optional[_Iterable[_Union[WrittenWindow, _Mapping]]] = ..., error: _Optional[str] = ..., marked: bool = ..., rows_under_way: _Optional[int] = ...) -> None: ...

class WorkOnSnapshotReply(_message.Message):
    __slots__ = ("windows", "over", "marker", "content")
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    MARKER_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    windows: _containers.RepeatedCompositeFieldContainer[WindowLease]
    over: bool
    marker: str
    content: str
    def __init__(self, windows: _Optional[_Iterable[_Union[WindowLease, _Mapping]]] = ..., over: bool = ..., marker: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class GetSnapshotRequest(_message.Message):
    __slots__ = ("snapshot_id",)
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    def __init__(self, snapshot_id: _Optional[str] = ...) -> None: ...

class GetSnapshotReply(_message.Message):
    __slots__ = ("json", "dataset_id", "path", "compression", "storage_options", "whole", "error", "windows")
    JSON_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    STORAGE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    json: str
    dataset_id: str
    path: str
    compression: str
    storage_options: str
    whole: bool
    error: str
    windows: int
    def __init__(self, json: _Optional[str] = ..., dataset_id: _Optional[str] = ..., path: _Optional[str] = ..., compression: _Optional[str] = ..., storage_options: _Optional[str] = ..., whole: bool = ..., error: _Optional[str] = ..., windows: _Optional[int] = ...) -> None: ...

class CancelSnapshotRequest(_message.Message):
    __slots__ = ("snapshot_id",)
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    def __init__(self, snapshot_id: _Optional[str] = ...) -> None: ...

class CancelSnapshotReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSnapshotsReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...
