from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConfigureRequest(_message.Message):
    __slots__ = ("session", "trainer_index", "trainer_count", "input_pipeline_id", "ps_addresses", "closures_in_flight", "incarnation", "in_rounds", "num_replicas_in_sync", "keeps_elements", "transport_dtype", "parameters")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TRAINER_INDEX_FIELD_NUMBER: _ClassVar[int]
    TRAINER_COUNT_FIELD_NUMBER: _ClassVar[int]
    INPUT_PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    PS_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    CLOSURES_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    IN_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_REPLICAS_IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    KEEPS_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_DTYPE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    session: str
    trainer_index: int
    trainer_count: int
    input_pipeline_id: int
    ps_addresses: _containers.RepeatedScalarFieldContainer[str]
    closures_in_flight: int
    incarnation: int
    in_rounds: bool
    num_replicas_in_sync: int
    keeps_elements: bool
    transport_dtype: str
    parameters: ParameterConfig
    def __init__(self, session: _Optional[str] = ..., trainer_index: _Optional[int] = ..., trainer_count: _Optional[int] = ..., input_pipeline_id: _Optional[int] = ..., ps_addresses: _Optional[_Iterable[str]] = ..., closures_in_flight: _Optional[int] = ..., incarnation: _Optional[int] = ..., in_rounds: bool = ..., num_replicas_in_sync: _Optional[int] = ..., keeps_elements: bool = ..., transport_dtype: _Optional[str] = ..., parameters: _Optional[_Union[ParameterConfig, _Mapping]] = ...) -> None: ...

class ParameterConfig(_message.Message):
    __slots__ = ("request_timeout_s", "start_timeout_s", "transfer_timeout_s", "chunk_bytes", "share_memory")
    REQUEST_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    START_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    request_timeout_s: float
    start_timeout_s: float
    transfer_timeout_s: float
    chunk_bytes: int
    share_memory: bool
    def __init__(self, request_timeout_s: _Optional[float] = ..., start_timeout_s: _Optional[float] = ..., transfer_timeout_s: _Optional[float] = ..., chunk_bytes: _Optional[int] = ..., share_memory: bool = ...) -> None: ...

class ConfigureReply(_message.Message):
    __slots__ = ("incarnation", "pid")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    pid: int
    def __init__(self, incarnation: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class Definition(_message.Message):
    __slots__ = ("id", "pickled")
    ID_FIELD_NUMBER: _ClassVar[int]
    PICKLED_FIELD_NUMBER: _ClassVar[int]
    id: str
    pickled: bytes
    def __init__(self, id: _Optional[str] = ..., pickled: _Optional[bytes] = ...) -> None: ...

class Closure(_message.Message):
    __slots__ = ("id", "attempt", "function_id", "pickled_arguments", "parts_decided", "inputs")
    ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_ID_FIELD_NUMBER: _ClassVar[int]
    PICKLED_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    PARTS_DECIDED_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    id: int
    attempt: int
    function_id: str
    pickled_arguments: bytes
    parts_decided: int
    inputs: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, id: _Optional[int] = ..., attempt: _Optional[int] = ..., function_id: _Optional[str] = ..., pickled_arguments: _Optional[bytes] = ..., parts_decided: _Optional[int] = ..., inputs: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("session", "functions", "resources", "dropped_resource_ids", "closures", "low_water", "settled", "dropped", "cancelled", "incarnation", "key_generation", "dropped_variables", "is_traced", "dropped_function_ids", "positions_of")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_RESOURCE_IDS_FIELD_NUMBER: _ClassVar[int]
    CLOSURES_FIELD_NUMBER: _ClassVar[int]
    LOW_WATER_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    KEY_GENERATION_FIELD_NUMBER: _ClassVar[int]
    DROPPED_VARIABLES_FIELD_NUMBER: _ClassVar[int]
    IS_TRACED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FUNCTION_IDS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_OF_FIELD_NUMBER: _ClassVar[int]
    session: str
    functions: _containers.RepeatedCompositeFieldContainer[Definition]
    resources: _containers.RepeatedCompositeFieldContainer[Definition]
    dropped_resource_ids: _containers.RepeatedScalarFieldContainer[str]
    closures: _containers.RepeatedCompositeFieldContainer[Closure]
    low_water: int
    settled: _containers.RepeatedScalarFieldContainer[int]
    dropped: _containers.RepeatedCompositeFieldContainer[RunId]
    cancelled: _containers.RepeatedCompositeFieldContainer[RunId]
    incarnation: int
    key_generation: int
    dropped_variables: _containers.RepeatedScalarFieldContainer[int]
    is_traced: bool
    dropped_function_ids: _containers.RepeatedScalarFieldContainer[str]
    positions_of: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[str] = ..., functions: _Optional[_Iterable[_Union[Definition, _Mapping]]] = ..., resources: _Optional[_Iterable[_Union[Definition, _Mapping]]] = ..., dropped_resource_ids: _Optional[_Iterable[str]] = ..., closures: _Optional[_Iterable[_Union[Closure, _Mapping]]] = ..., low_water: _Optional[int] = ..., settled: _Optional[_Iterable[int]] = ..., dropped: _Optional[_Iterable[_Union[RunId, _Mapping]]] = ..., cancelled: _Optional[_Iterable[_Union[RunId, _Mapping]]] = ..., incarnation: _Optional[int] = ..., key_generation: _Optional[int] = ..., dropped_variables: _Optional[_Iterable[int]] = ..., is_traced: bool = ..., dropped_function_ids: _Optional[_Iterable[str]] = ..., positions_of: _Optional[_Iterable[str]] = ...) -> None: ...

class RunId(_message.Message):
    __slots__ = ("id", "attempt")
    ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    id: int
    attempt: int
    def __init__(self, id: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class CancelAnswer(_message.Message):
    __slots__ = ("id", "attempt", "is_granted")
    ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    IS_GRANTED_FIELD_NUMBER: _ClassVar[int]
    id: int
    attempt: int
    is_granted: bool
    def __init__(self, id: _Optional[int] = ..., attempt: _Optional[int] = ..., is_granted: bool = ...) -> None: ...

class ClosureResult(_message.Message):
    __slots__ = ("id", "attempt", "value", "error_json", "seconds", "commit_seconds", "needs_settling", "rows_json", "is_prepared", "servers", "has_gradient", "was_dropped", "ended_resource_ids")
    ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NEEDS_SETTLING_FIELD_NUMBER: _ClassVar[int]
    ROWS_JSON_FIELD_NUMBER: _ClassVar[int]
    IS_PREPARED_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    HAS_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    WAS_DROPPED_FIELD_NUMBER: _ClassVar[int]
    ENDED_RESOURCE_IDS_FIELD_NUMBER: _ClassVar[int]
    id: int
    attempt: int
    value: bytes
    error_json: str
    seconds: float
    commit_seconds: float
    needs_settling: bool
    rows_json: str
    is_prepared: bool
    servers: _containers.RepeatedScalarFieldContainer[int]
    has_gradient: bool
    was_dropped: bool
    ended_resource_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[int] = ..., attempt: _Optional[int] = ..., value: _Optional[bytes] = ..., error_json: _Optional[str] = ..., seconds: _Optional[float] = ..., commit_seconds: _Optional[float] = ..., needs_settling: bool = ..., rows_json: _Optional[str] = ..., is_prepared: bool = ..., servers: _Optional[_Iterable[int]] = ..., has_gradient: bool = ..., was_dropped: bool = ..., ended_resource_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("resource_id", "json", "error_json")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    json: str
    error_json: str
    def __init__(self, resource_id: _Optional[str] = ..., json: _Optional[str] = ..., error_json: _Optional[str] = ...) -> None: ...

class RunReply(_message.Message):
    __slots__ = ("results", "services", "positions", "cancels")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ClosureResult]
    services: _containers.RepeatedScalarFieldContainer[str]
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    cancels: _containers.RepeatedCompositeFieldContainer[CancelAnswer]
    def __init__(self, results: _Optional[_Iterable[_Union[ClosureResult, _Mapping]]] = ..., services: _Optional[_Iterable[str]] = ..., positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., cancels: _Optional[_Iterable[_Union[CancelAnswer, _Mapping]]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
