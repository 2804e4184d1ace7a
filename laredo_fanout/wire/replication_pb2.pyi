import datetime

from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SyncMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SYNC_MODE_UNSPECIFIED: _ClassVar[SyncMode]
    SYNC_MODE_FULL_SNAPSHOT: _ClassVar[SyncMode]
    SYNC_MODE_DELTA: _ClassVar[SyncMode]
    SYNC_MODE_DELTA_FROM_SNAPSHOT: _ClassVar[SyncMode]
    SYNC_MODE_REPLAY_ARCHIVE: _ClassVar[SyncMode]
SYNC_MODE_UNSPECIFIED: SyncMode
SYNC_MODE_FULL_SNAPSHOT: SyncMode
SYNC_MODE_DELTA: SyncMode
SYNC_MODE_DELTA_FROM_SNAPSHOT: SyncMode
SYNC_MODE_REPLAY_ARCHIVE: SyncMode

class SyncRequest(_message.Message):
    __slots__ = ("schema", "table", "last_known_sequence", "last_snapshot_id", "client_id", "last_known_source_position", "filters", "capabilities", "want_old", "history")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LAST_KNOWN_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_KNOWN_SOURCE_POSITION_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    WANT_OLD_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    last_known_sequence: int
    last_snapshot_id: str
    client_id: str
    last_known_source_position: str
    filters: _containers.RepeatedCompositeFieldContainer[FieldPredicate]
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    want_old: bool
    history: str
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ..., last_known_sequence: _Optional[int] = ..., last_snapshot_id: _Optional[str] = ..., client_id: _Optional[str] = ..., last_known_source_position: _Optional[str] = ..., filters: _Optional[_Iterable[_Union[FieldPredicate, _Mapping]]] = ..., capabilities: _Optional[_Iterable[str]] = ..., want_old: _Optional[bool] = ..., history: _Optional[str] = ...) -> None: ...

class FieldPredicate(_message.Message):
    __slots__ = ("field", "equals", "prefix")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    EQUALS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    IN_FIELD_NUMBER: _ClassVar[int]
    field: str
    equals: _struct_pb2.Value
    prefix: str
    def __init__(self, field: _Optional[str] = ..., equals: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., prefix: _Optional[str] = ..., **kwargs) -> None: ...

class SyncResponse(_message.Message):
    __slots__ = ("handshake", "snapshot_begin", "snapshot_row", "snapshot_end", "journal_entry", "schema_change", "heartbeat", "go_away", "snapshot_batch", "change_batch")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BEGIN_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ROW_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_END_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ENTRY_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_CHANGE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BATCH_FIELD_NUMBER: _ClassVar[int]
    CHANGE_BATCH_FIELD_NUMBER: _ClassVar[int]
    handshake: SyncHandshake
    snapshot_begin: SnapshotBegin
    snapshot_row: SnapshotRow
    snapshot_end: SnapshotEnd
    journal_entry: ReplicationJournalEntry
    schema_change: SchemaChangeNotification
    heartbeat: Heartbeat
    go_away: GoAway
    snapshot_batch: SnapshotBatch
    change_batch: ChangeBatch
    def __init__(self, handshake: _Optional[_Union[SyncHandshake, _Mapping]] = ..., snapshot_begin: _Optional[_Union[SnapshotBegin, _Mapping]] = ..., snapshot_row: _Optional[_Union[SnapshotRow, _Mapping]] = ..., snapshot_end: _Optional[_Union[SnapshotEnd, _Mapping]] = ..., journal_entry: _Optional[_Union[ReplicationJournalEntry, _Mapping]] = ..., schema_change: _Optional[_Union[SchemaChangeNotification, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., go_away: _Optional[_Union[GoAway, _Mapping]] = ..., snapshot_batch: _Optional[_Union[SnapshotBatch, _Mapping]] = ..., change_batch: _Optional[_Union[ChangeBatch, _Mapping]] = ...) -> None: ...

class SyncHandshake(_message.Message):
    __slots__ = ("mode", "server_current_sequence", "journal_oldest_sequence", "resume_from_sequence", "columns", "snapshot_id", "source_position", "history", "capabilities", "boundary_position", "ancestors", "history_reason", "history_since", "holder")
    MODE_FIELD_NUMBER: _ClassVar[int]
    SERVER_CURRENT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_OLDEST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FROM_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_POSITION_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_POSITION_FIELD_NUMBER: _ClassVar[int]
    ANCESTORS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_REASON_FIELD_NUMBER: _ClassVar[int]
    HISTORY_SINCE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    mode: SyncMode
    server_current_sequence: int
    journal_oldest_sequence: int
    resume_from_sequence: int
    columns: _containers.RepeatedCompositeFieldContainer[ColumnDefinition]
    snapshot_id: str
    source_position: str
    history: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    boundary_position: str
    ancestors: _containers.RepeatedCompositeFieldContainer[HistoryAncestor]
    history_reason: str
    history_since: str
    holder: HolderState
    def __init__(self, mode: _Optional[_Union[SyncMode, str]] = ..., server_current_sequence: _Optional[int] = ..., journal_oldest_sequence: _Optional[int] = ..., resume_from_sequence: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[ColumnDefinition, _Mapping]]] = ..., snapshot_id: _Optional[str] = ..., source_position: _Optional[str] = ..., history: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., boundary_position: _Optional[str] = ..., ancestors: _Optional[_Iterable[_Union[HistoryAncestor, _Mapping]]] = ..., history_reason: _Optional[str] = ..., history_since: _Optional[str] = ..., holder: _Optional[_Union[HolderState, _Mapping]] = ...) -> None: ...

class HolderState(_message.Message):
    __slots__ = ("incarnation", "definition", "source")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    definition: bytes
    source: bytes
    def __init__(self, incarnation: _Optional[int] = ..., definition: _Optional[bytes] = ..., source: _Optional[bytes] = ...) -> None: ...

class HistoryAncestor(_message.Message):
    __slots__ = ("history", "until")
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    history: str
    until: str
    def __init__(self, history: _Optional[str] = ..., until: _Optional[str] = ...) -> None: ...

class ColumnDefinition(_message.Message):
    __slots__ = ("ordinal_position", "column_name", "data_type", "not_null", "is_primary_key", "primary_key_ordinal", "type_modifier")
    ORDINAL_POSITION_FIELD_NUMBER: _ClassVar[int]
    COLUMN_NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    NOT_NULL_FIELD_NUMBER: _ClassVar[int]
    IS_PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_ORDINAL_FIELD_NUMBER: _ClassVar[int]
    TYPE_MODIFIER_FIELD_NUMBER: _ClassVar[int]
    ordinal_position: int
    column_name: str
    data_type: str
    not_null: bool
    is_primary_key: bool
    primary_key_ordinal: int
    type_modifier: int
    def __init__(self, ordinal_position: _Optional[int] = ..., column_name: _Optional[str] = ..., data_type: _Optional[str] = ..., not_null: _Optional[bool] = ..., is_primary_key: _Optional[bool] = ..., primary_key_ordinal: _Optional[int] = ..., type_modifier: _Optional[int] = ...) -> None: ...

class SnapshotBegin(_message.Message):
    __slots__ = ("snapshot_id", "sequence", "row_count", "source_position", "reason", "holder")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_POSITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    sequence: int
    row_count: int
    source_position: str
    reason: str
    holder: HolderState
    def __init__(self, snapshot_id: _Optional[str] = ..., sequence: _Optional[int] = ..., row_count: _Optional[int] = ..., source_position: _Optional[str] = ..., reason: _Optional[str] = ..., holder: _Optional[_Union[HolderState, _Mapping]] = ...) -> None: ...

class SnapshotRow(_message.Message):
    __slots__ = ("row",)
    ROW_FIELD_NUMBER: _ClassVar[int]
    row: _struct_pb2.Struct
    def __init__(self, row: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class SnapshotEnd(_message.Message):
    __slots__ = ("sequence", "rows_sent", "source_position", "state_checksum", "rows", "boundary_position")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_SENT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_POSITION_FIELD_NUMBER: _ClassVar[int]
    STATE_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_POSITION_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    rows_sent: int
    source_position: str
    state_checksum: str
    rows: int
    boundary_position: str
    def __init__(self, sequence: _Optional[int] = ..., rows_sent: _Optional[int] = ..., source_position: _Optional[str] = ..., state_checksum: _Optional[str] = ..., rows: _Optional[int] = ..., boundary_position: _Optional[str] = ...) -> None: ...

class ReplicationJournalEntry(_message.Message):
    __slots__ = ("sequence", "source_position", "timestamp", "action", "old_values", "new_values")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_POSITION_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    OLD_VALUES_FIELD_NUMBER: _ClassVar[int]
    NEW_VALUES_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    source_position: str
    timestamp: _timestamp_pb2.Timestamp
    action: str
    old_values: _struct_pb2.Struct
    new_values: _struct_pb2.Struct
    def __init__(self, sequence: _Optional[int] = ..., source_position: _Optional[str] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., action: _Optional[str] = ..., old_values: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., new_values: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class SchemaChangeNotification(_message.Message):
    __slots__ = ("sequence", "old_columns", "new_columns")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OLD_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    NEW_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    old_columns: _containers.RepeatedCompositeFieldContainer[ColumnDefinition]
    new_columns: _containers.RepeatedCompositeFieldContainer[ColumnDefinition]
    def __init__(self, sequence: _Optional[int] = ..., old_columns: _Optional[_Iterable[_Union[ColumnDefinition, _Mapping]]] = ..., new_columns: _Optional[_Iterable[_Union[ColumnDefinition, _Mapping]]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("current_sequence", "server_time", "source_position", "boundary_position")
    CURRENT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SERVER_TIME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_POSITION_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_POSITION_FIELD_NUMBER: _ClassVar[int]
    current_sequence: int
    server_time: _timestamp_pb2.Timestamp
    source_position: str
    boundary_position: str
    def __init__(self, current_sequence: _Optional[int] = ..., server_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., source_position: _Optional[str] = ..., boundary_position: _Optional[str] = ...) -> None: ...

class GoAway(_message.Message):
    __slots__ = ("reason", "drain_deadline_unix_ms")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRAIN_DEADLINE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    drain_deadline_unix_ms: int
    def __init__(self, reason: _Optional[str] = ..., drain_deadline_unix_ms: _Optional[int] = ...) -> None: ...

class SnapshotBatch(_message.Message):
    __slots__ = ("keys", "lines")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    lines: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, keys: _Optional[_Iterable[bytes]] = ..., lines: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ChangeBatch(_message.Message):
    __slots__ = ("first_sequence", "sequences", "actions", "counts", "positions", "times_us", "open", "keys", "lines", "old_lines", "since_position")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TIMES_US_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    OLD_LINES_FIELD_NUMBER: _ClassVar[int]
    SINCE_POSITION_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    sequences: _containers.RepeatedScalarFieldContainer[int]
    actions: bytes
    counts: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    times_us: _containers.RepeatedScalarFieldContainer[int]
    open: bool
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    lines: _containers.RepeatedScalarFieldContainer[bytes]
    old_lines: _containers.RepeatedScalarFieldContainer[bytes]
    since_position: int
    def __init__(self, first_sequence: _Optional[int] = ..., sequences: _Optional[_Iterable[int]] = ..., actions: _Optional[bytes] = ..., counts: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., times_us: _Optional[_Iterable[int]] = ..., open: _Optional[bool] = ..., keys: _Optional[_Iterable[bytes]] = ..., lines: _Optional[_Iterable[bytes]] = ..., old_lines: _Optional[_Iterable[bytes]] = ..., since_position: _Optional[int] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ("schema", "table", "limit")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    limit: int
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListSnapshotsResponse(_message.Message):
    __slots__ = ("snapshots",)
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[ReplicationSnapshotInfo]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[ReplicationSnapshotInfo, _Mapping]]] = ...) -> None: ...

class ReplicationSnapshotInfo(_message.Message):
    __slots__ = ("snapshot_id", "sequence", "source_position", "row_count", "size_bytes", "created_at")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_POSITION_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    sequence: int
    source_position: str
    row_count: int
    size_bytes: int
    created_at: _timestamp_pb2.Timestamp
    def __init__(self, snapshot_id: _Optional[str] = ..., sequence: _Optional[int] = ..., source_position: _Optional[str] = ..., row_count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class FetchSnapshotRequest(_message.Message):
    __slots__ = ("snapshot_id",)
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    def __init__(self, snapshot_id: _Optional[str] = ...) -> None: ...

class FetchSnapshotResponse(_message.Message):
    __slots__ = ("begin", "row", "end")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    begin: SnapshotBegin
    row: SnapshotRow
    end: SnapshotEnd
    def __init__(self, begin: _Optional[_Union[SnapshotBegin, _Mapping]] = ..., row: _Optional[_Union[SnapshotRow, _Mapping]] = ..., end: _Optional[_Union[SnapshotEnd, _Mapping]] = ...) -> None: ...

class GetReplicationStatusRequest(_message.Message):
    __slots__ = ("schema", "table", "capabilities", "standby", "take_over")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    schema: str
    table: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    standby: StandbyReport
    take_over: str
    def __init__(self, schema: _Optional[str] = ..., table: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., standby: _Optional[_Union[StandbyReport, _Mapping]] = ..., take_over: _Optional[str] = ...) -> None: ...

class StandbyReport(_message.Message):
    __slots__ = ("server_id", "tables")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    tables: _containers.RepeatedCompositeFieldContainer[TableReport]
    def __init__(self, server_id: _Optional[str] = ..., tables: _Optional[_Iterable[_Union[TableReport, _Mapping]]] = ...) -> None: ...

class TableReport(_message.Message):
    __slots__ = ("table", "incarnation", "position")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    table: str
    incarnation: int
    position: int
    def __init__(self, table: _Optional[str] = ..., incarnation: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class GetReplicationStatusResponse(_message.Message):
    __slots__ = ("current_sequence", "journal_oldest_sequence", "journal_entry_count", "row_count", "connected_clients", "clients", "latest_snapshot", "path", "tables", "role")
    CURRENT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_OLDEST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ENTRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    LATEST_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    current_sequence: int
    journal_oldest_sequence: int
    journal_entry_count: int
    row_count: int
    connected_clients: int
    clients: _containers.RepeatedCompositeFieldContainer[ConnectedClient]
    latest_snapshot: ReplicationSnapshotInfo
    path: _containers.RepeatedCompositeFieldContainer[ServerHop]
    tables: _containers.RepeatedScalarFieldContainer[str]
    role: ServerRole
    def __init__(self, current_sequence: _Optional[int] = ..., journal_oldest_sequence: _Optional[int] = ..., journal_entry_count: _Optional[int] = ..., row_count: _Optional[int] = ..., connected_clients: _Optional[int] = ..., clients: _Optional[_Iterable[_Union[ConnectedClient, _Mapping]]] = ..., latest_snapshot: _Optional[_Union[ReplicationSnapshotInfo, _Mapping]] = ..., path: _Optional[_Iterable[_Union[ServerHop, _Mapping]]] = ..., tables: _Optional[_Iterable[str]] = ..., role: _Optional[_Union[ServerRole, _Mapping]] = ...) -> None: ...

class ServerRole(_message.Message):
    __slots__ = ("server_id", "holder", "term", "has_source", "position", "candidate", "cut_off")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    HAS_SOURCE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    CUT_OFF_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    holder: bool
    term: int
    has_source: bool
    position: int
    candidate: bool
    cut_off: bool
    def __init__(self, server_id: _Optional[str] = ..., holder: _Optional[bool] = ..., term: _Optional[int] = ..., has_source: _Optional[bool] = ..., position: _Optional[int] = ..., candidate: _Optional[bool] = ..., cut_off: _Optional[bool] = ...) -> None: ...

class ServerHop(_message.Message):
    __slots__ = ("server_id", "address", "source_position", "delay_us")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_POSITION_FIELD_NUMBER: _ClassVar[int]
    DELAY_US_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    address: str
    source_position: str
    delay_us: int
    def __init__(self, server_id: _Optional[str] = ..., address: _Optional[str] = ..., source_position: _Optional[str] = ..., delay_us: _Optional[int] = ...) -> None: ...

class ConnectedClient(_message.Message):
    __slots__ = ("client_id", "current_sequence", "behind_count", "buffer_depth", "connected_at", "state")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CURRENT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BEHIND_COUNT_FIELD_NUMBER: _ClassVar[int]
    BUFFER_DEPTH_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_AT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    current_sequence: int
    behind_count: int
    buffer_depth: int
    connected_at: _timestamp_pb2.Timestamp
    state: str
    def __init__(self, client_id: _Optional[str] = ..., current_sequence: _Optional[int] = ..., behind_count: _Optional[int] = ..., buffer_depth: _Optional[int] = ..., connected_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[str] = ...) -> None: ...
