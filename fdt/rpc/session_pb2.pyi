from fdt.rpc import job_pb2 as _job_pb2
from fdt.rpc import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobRequest(_message.Message):
    __slots__ = ("workers", "priority", "name")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    workers: int
    priority: int
    name: str
    def __init__(self, workers: _Optional[int] = ..., priority: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class Setup(_message.Message):
    __slots__ = ("job", "peers", "incarnation", "snapshot", "generation", "request")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    job: _job_pb2.JobSpec
    peers: _containers.RepeatedScalarFieldContainer[str]
    incarnation: int
    snapshot: _tensor_pb2.BlobRef
    generation: int
    request: JobRequest
    def __init__(self, job: _Optional[_Union[_job_pb2.JobSpec, _Mapping]] = ..., peers: _Optional[_Iterable[str]] = ..., incarnation: _Optional[int] = ..., snapshot: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., generation: _Optional[int] = ..., request: _Optional[_Union[JobRequest, _Mapping]] = ...) -> None: ...

class Remaining(_message.Message):
    __slots__ = ("next", "returned")
    NEXT_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    next: int
    returned: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, next: _Optional[int] = ..., returned: _Optional[_Iterable[int]] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("epoch", "step", "samples", "state", "metrics", "skipped", "rank_metrics", "remaining")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    RANK_METRICS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    samples: int
    state: _job_pb2.State
    metrics: _tensor_pb2.BlobRef
    skipped: int
    rank_metrics: _tensor_pb2.BlobRef
    remaining: Remaining
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., samples: _Optional[int] = ..., state: _Optional[_Union[_job_pb2.State, _Mapping]] = ..., metrics: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., skipped: _Optional[int] = ..., rank_metrics: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., remaining: _Optional[_Union[Remaining, _Mapping]] = ...) -> None: ...

class Epoch(_message.Message):
    __slots__ = ("epoch", "changed", "stop", "begin")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    changed: _job_pb2.State
    stop: bool
    begin: Commit
    def __init__(self, epoch: _Optional[int] = ..., changed: _Optional[_Union[_job_pb2.State, _Mapping]] = ..., stop: bool = ..., begin: _Optional[_Union[Commit, _Mapping]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("changed",)
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    changed: _job_pb2.State
    def __init__(self, changed: _Optional[_Union[_job_pb2.State, _Mapping]] = ...) -> None: ...

class EndEpoch(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Evaluate(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FeedBatch(_message.Message):
    __slots__ = ("name", "epoch", "index", "arrays", "structure", "end")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    index: int
    arrays: _tensor_pb2.BlobRef
    structure: str
    end: bool
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., index: _Optional[int] = ..., arrays: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., structure: _Optional[str] = ..., end: bool = ...) -> None: ...

class Exit(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Leave(_message.Message):
    __slots__ = ("rank", "incarnation")
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    rank: int
    incarnation: int
    def __init__(self, rank: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Where(_message.Message):
    __slots__ = ("dump",)
    DUMP_FIELD_NUMBER: _ClassVar[int]
    dump: bool
    def __init__(self, dump: bool = ...) -> None: ...

class Suspend(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Command(_message.Message):
    __slots__ = ("job", "setup", "epoch", "step", "end_epoch", "evaluate", "finish", "feed", "exit", "leave", "where", "suspend")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SETUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    END_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    FEED_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    SUSPEND_FIELD_NUMBER: _ClassVar[int]
    job: str
    setup: Setup
    epoch: Epoch
    step: Step
    end_epoch: EndEpoch
    evaluate: Evaluate
    finish: Finish
    feed: FeedBatch
    exit: Exit
    leave: Leave
    where: Where
    suspend: Suspend
    def __init__(self, job: _Optional[str] = ..., setup: _Optional[_Union[Setup, _Mapping]] = ..., epoch: _Optional[_Union[Epoch, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., end_epoch: _Optional[_Union[EndEpoch, _Mapping]] = ..., evaluate: _Optional[_Union[Evaluate, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., feed: _Optional[_Union[FeedBatch, _Mapping]] = ..., exit: _Optional[_Union[Exit, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., where: _Optional[_Union[Where, _Mapping]] = ..., suspend: _Optional[_Union[Suspend, _Mapping]] = ...) -> None: ...

class Attached(_message.Message):
    __slots__ = ("role", "rank", "pid", "host", "log")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    role: str
    rank: int
    pid: int
    host: str
    log: str
    def __init__(self, role: _Optional[str] = ..., rank: _Optional[int] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., log: _Optional[str] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("address", "steps_per_epoch", "notes", "chosen", "why_chosen", "suspendable", "algorithm")
    class ChosenEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    WHY_CHOSEN_FIELD_NUMBER: _ClassVar[int]
    SUSPENDABLE_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    address: str
    steps_per_epoch: int
    notes: str
    chosen: _containers.ScalarMap[str, str]
    why_chosen: str
    suspendable: bool
    algorithm: str
    def __init__(self, address: _Optional[str] = ..., steps_per_epoch: _Optional[int] = ..., notes: _Optional[str] = ..., chosen: _Optional[_Mapping[str, str]] = ..., why_chosen: _Optional[str] = ..., suspendable: bool = ..., algorithm: _Optional[str] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("epoch", "step", "samples", "logs", "bytes_sent", "bytes_received", "busy_seconds", "memory_bytes", "staleness")
    class LogsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    samples: int
    logs: _containers.ScalarMap[str, float]
    bytes_sent: int
    bytes_received: int
    busy_seconds: float
    memory_bytes: int
    staleness: float
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., samples: _Optional[int] = ..., logs: _Optional[_Mapping[str, float]] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., busy_seconds: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., staleness: _Optional[float] = ...) -> None: ...

class StepEnd(_message.Message):
    __slots__ = ("step", "logs", "state", "metrics", "last", "log_names")
    class LogsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LOG_NAMES_FIELD_NUMBER: _ClassVar[int]
    step: int
    logs: _containers.ScalarMap[str, float]
    state: _job_pb2.State
    metrics: _tensor_pb2.BlobRef
    last: bool
    log_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, step: _Optional[int] = ..., logs: _Optional[_Mapping[str, float]] = ..., state: _Optional[_Union[_job_pb2.State, _Mapping]] = ..., metrics: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., last: bool = ..., log_names: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkerShare(_message.Message):
    __slots__ = ("rank", "steps", "samples", "seconds", "bytes_sent", "bytes_received", "busy_seconds", "incarnation", "memory_bytes", "staleness")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    steps: int
    samples: int
    seconds: float
    bytes_sent: int
    bytes_received: int
    busy_seconds: float
    incarnation: int
    memory_bytes: int
    staleness: float
    def __init__(self, rank: _Optional[int] = ..., steps: _Optional[int] = ..., samples: _Optional[int] = ..., seconds: _Optional[float] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., busy_seconds: _Optional[float] = ..., incarnation: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., staleness: _Optional[float] = ...) -> None: ...

class EpochEnd(_message.Message):
    __slots__ = ("epoch", "steps", "samples", "logs", "state", "metrics", "extra", "seconds", "bytes_sent", "bytes_received", "workers", "busy_seconds", "skipped", "memory_bytes", "staleness", "remaining", "log_names", "generation", "seeds")
    class LogsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ExtraEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    LOG_NAMES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    steps: int
    samples: int
    logs: _containers.ScalarMap[str, float]
    state: _job_pb2.State
    metrics: _tensor_pb2.BlobRef
    extra: _containers.ScalarMap[str, float]
    seconds: float
    bytes_sent: int
    bytes_received: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerShare]
    busy_seconds: float
    skipped: int
    memory_bytes: int
    staleness: float
    remaining: Remaining
    log_names: _containers.RepeatedScalarFieldContainer[str]
    generation: int
    seeds: _tensor_pb2.BlobRef
    def __init__(self, epoch: _Optional[int] = ..., steps: _Optional[int] = ..., samples: _Optional[int] = ..., logs: _Optional[_Mapping[str, float]] = ..., state: _Optional[_Union[_job_pb2.State, _Mapping]] = ..., metrics: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., extra: _Optional[_Mapping[str, float]] = ..., seconds: _Optional[float] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerShare, _Mapping]]] = ..., busy_seconds: _Optional[float] = ..., skipped: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., staleness: _Optional[float] = ..., remaining: _Optional[_Union[Remaining, _Mapping]] = ..., log_names: _Optional[_Iterable[str]] = ..., generation: _Optional[int] = ..., seeds: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class Evaluated(_message.Message):
    __slots__ = ("epoch", "logs", "metrics", "log_names")
    class LogsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    LOG_NAMES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    logs: _containers.ScalarMap[str, float]
    metrics: _tensor_pb2.BlobRef
    log_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., logs: _Optional[_Mapping[str, float]] = ..., metrics: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., log_names: _Optional[_Iterable[str]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FeedWanted(_message.Message):
    __slots__ = ("name", "epoch", "up_to")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UP_TO_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    up_to: int
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., up_to: _Optional[int] = ...) -> None: ...

class Note(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("message", "detail", "users_code", "replica", "refused")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    USERS_CODE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    message: str
    detail: str
    users_code: bool
    replica: str
    refused: bool
    def __init__(self, message: _Optional[str] = ..., detail: _Optional[str] = ..., users_code: bool = ..., replica: _Optional[str] = ..., refused: bool = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("number", "epoch", "running", "state")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    number: int
    epoch: int
    running: bool
    state: _tensor_pb2.BlobRef
    def __init__(self, number: _Optional[int] = ..., epoch: _Optional[int] = ..., running: bool = ..., state: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("message", "member", "action")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    message: str
    member: str
    action: str
    def __init__(self, message: _Optional[str] = ..., member: _Optional[str] = ..., action: _Optional[str] = ...) -> None: ...

class Standing(_message.Message):
    __slots__ = ("entered", "left", "place", "log")
    ENTERED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    entered: int
    left: int
    place: str
    log: str
    def __init__(self, entered: _Optional[int] = ..., left: _Optional[int] = ..., place: _Optional[str] = ..., log: _Optional[str] = ...) -> None: ...

class Membership(_message.Message):
    __slots__ = ("message", "member", "action")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    message: str
    member: str
    action: str
    def __init__(self, message: _Optional[str] = ..., member: _Optional[str] = ..., action: _Optional[str] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("thread", "name", "start", "end", "epoch", "step")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    thread: str
    name: str
    start: float
    end: float
    epoch: int
    step: int
    def __init__(self, thread: _Optional[str] = ..., name: _Optional[str] = ..., start: _Optional[float] = ..., end: _Optional[float] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Spans(_message.Message):
    __slots__ = ("process", "spans")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    process: str
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, process: _Optional[str] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("job", "rank", "attached", "ready", "progress", "step_end", "epoch_end", "evaluated", "finished", "feed_wanted", "output", "failed", "note", "fault", "checkpoint", "commit", "standing", "membership", "spans")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STEP_END_FIELD_NUMBER: _ClassVar[int]
    EPOCH_END_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FEED_WANTED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    job: str
    rank: int
    attached: Attached
    ready: Ready
    progress: Progress
    step_end: StepEnd
    epoch_end: EpochEnd
    evaluated: Evaluated
    finished: Finished
    feed_wanted: FeedWanted
    output: Output
    failed: Failed
    note: Note
    fault: Fault
    checkpoint: Checkpoint
    commit: Commit
    standing: Standing
    membership: Membership
    spans: Spans
    def __init__(self, job: _Optional[str] = ..., rank: _Optional[int] = ..., attached: _Optional[_Union[Attached, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., step_end: _Optional[_Union[StepEnd, _Mapping]] = ..., epoch_end: _Optional[_Union[EpochEnd, _Mapping]] = ..., evaluated: _Optional[_Union[Evaluated, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., feed_wanted: _Optional[_Union[FeedWanted, _Mapping]] = ..., output: _Optional[_Union[Output, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., note: _Optional[_Union[Note, _Mapping]] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., standing: _Optional[_Union[Standing, _Mapping]] = ..., membership: _Optional[_Union[Membership, _Mapping]] = ..., spans: _Optional[_Union[Spans, _Mapping]] = ...) -> None: ...
