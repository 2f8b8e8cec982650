from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_NONE: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_SERVER_ERROR: _ClassVar[ErrorCode]
    ERROR_CODE_OFFSET_OUT_OF_RANGE: _ClassVar[ErrorCode]
    ERROR_CODE_CORRUPT_MESSAGE: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_FETCH_SIZE: _ClassVar[ErrorCode]
    ERROR_CODE_LEADER_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_LEADER_OR_FOLLOWER: _ClassVar[ErrorCode]
    ERROR_CODE_REQUEST_TIMED_OUT: _ClassVar[ErrorCode]
    ERROR_CODE_BROKER_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_MESSAGE_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_OFFSET_METADATA_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_NETWORK_EXCEPTION: _ClassVar[ErrorCode]
    ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS: _ClassVar[ErrorCode]
    ERROR_CODE_COORDINATOR_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_COORDINATOR: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TOPIC_EXCEPTION: _ClassVar[ErrorCode]
    ERROR_CODE_RECORD_LIST_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_ENOUGH_REPLICAS: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_ENOUGH_REPLICAS_AFTER_APPEND: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REQUIRED_ACKS: _ClassVar[ErrorCode]
    ERROR_CODE_ILLEGAL_GENERATION: _ClassVar[ErrorCode]
    ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_GROUP_ID: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_MEMBER_ID: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_SESSION_TIMEOUT: _ClassVar[ErrorCode]
    ERROR_CODE_REBALANCE_IN_PROGRESS: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_COMMIT_OFFSET_SIZE: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_AUTHORIZATION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_AUTHORIZATION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_CLUSTER_AUTHORIZATION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TIMESTAMP: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED_SASL_MECHANISM: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED_VERSION: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_ALREADY_EXISTS: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_PARTITIONS: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REPLICATION_FACTOR: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REPLICA_ASSIGNMENT: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_CONFIG: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_CONTROLLER: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REQUEST: _ClassVar[ErrorCode]
    ERROR_CODE_POLICY_VIOLATION: _ClassVar[ErrorCode]
    ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER: _ClassVar[ErrorCode]
    ERROR_CODE_DUPLICATE_SEQUENCE_NUMBER: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_PRODUCER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TXN_STATE: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_PRODUCER_ID_MAPPING: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TRANSACTION_TIMEOUT: _ClassVar[ErrorCode]
    ERROR_CODE_CONCURRENT_TRANSACTIONS: _ClassVar[ErrorCode]
    ERROR_CODE_TRANSACTION_COORDINATOR_FENCED: _ClassVar[ErrorCode]
    ERROR_CODE_TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_SECURITY_DISABLED: _ClassVar[ErrorCode]
    ERROR_CODE_KAFKA_STORAGE_ERROR: _ClassVar[ErrorCode]
    ERROR_CODE_SASL_AUTHENTICATION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_PRODUCER_ID: _ClassVar[ErrorCode]
    ERROR_CODE_NON_EMPTY_GROUP: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_ID_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_FENCED_LEADER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_LEADER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED_COMPRESSION_TYPE: _ClassVar[ErrorCode]
    ERROR_CODE_STALE_BROKER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_OFFSET_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_MEMBER_ID_REQUIRED: _ClassVar[ErrorCode]
    ERROR_CODE_PREFERRED_LEADER_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_MAX_SIZE_REACHED: _ClassVar[ErrorCode]
    ERROR_CODE_FENCED_INSTANCE_ID: _ClassVar[ErrorCode]
    ERROR_CODE_ELECTION_NOT_NEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_NO_REASSIGNMENT_IN_PROGRESS: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_SUBSCRIBED_TO_TOPIC: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_RECORD: _ClassVar[ErrorCode]
    ERROR_CODE_UNSTABLE_OFFSET_COMMIT: _ClassVar[ErrorCode]
    ERROR_CODE_THROTTLING_QUOTA_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_PRODUCER_FENCED: _ClassVar[ErrorCode]
    ERROR_CODE_RESOURCE_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_DUPLICATE_RESOURCE: _ClassVar[ErrorCode]
    ERROR_CODE_UNACCEPTABLE_CREDENTIAL: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_UPDATE_VERSION: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_TOPIC_ID: _ClassVar[ErrorCode]
    ERROR_CODE_DUPLICATE_BROKER_REGISTRATION: _ClassVar[ErrorCode]
    ERROR_CODE_BROKER_ID_NOT_REGISTERED: _ClassVar[ErrorCode]
    ERROR_CODE_INCONSISTENT_TOPIC_ID: _ClassVar[ErrorCode]
    ERROR_CODE_TRANSACTIONAL_ID_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REGISTRATION: _ClassVar[ErrorCode]
    ERROR_CODE_TRANSACTION_ABORTABLE: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REGULAR_EXPRESSION: _ClassVar[ErrorCode]

class PayloadCodec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAYLOAD_CODEC_NONE: _ClassVar[PayloadCodec]
    PAYLOAD_CODEC_GZIP: _ClassVar[PayloadCodec]
    PAYLOAD_CODEC_SNAPPY: _ClassVar[PayloadCodec]

class RecordFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECORD_FORMAT_ARROW: _ClassVar[RecordFormat]
    RECORD_FORMAT_RECORDS: _ClassVar[RecordFormat]

class FetchSession(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FETCH_SESSION_NONE: _ClassVar[FetchSession]
    FETCH_SESSION_BEGIN: _ClassVar[FetchSession]
    FETCH_SESSION_CONTINUE: _ClassVar[FetchSession]

class CoordinatorType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COORDINATOR_TYPE_GROUP: _ClassVar[CoordinatorType]
    COORDINATOR_TYPE_TRANSACTION: _ClassVar[CoordinatorType]

class AclResourceType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACL_RESOURCE_TYPE_ANY: _ClassVar[AclResourceType]
    ACL_RESOURCE_TYPE_TOPIC: _ClassVar[AclResourceType]
    ACL_RESOURCE_TYPE_GROUP: _ClassVar[AclResourceType]
    ACL_RESOURCE_TYPE_CLUSTER: _ClassVar[AclResourceType]
    ACL_RESOURCE_TYPE_TRANSACTIONAL_ID: _ClassVar[AclResourceType]

class AclPatternType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACL_PATTERN_TYPE_ANY: _ClassVar[AclPatternType]
    ACL_PATTERN_TYPE_LITERAL: _ClassVar[AclPatternType]
    ACL_PATTERN_TYPE_PREFIXED: _ClassVar[AclPatternType]
    ACL_PATTERN_TYPE_MATCH: _ClassVar[AclPatternType]

class AclOperation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACL_OPERATION_ANY: _ClassVar[AclOperation]
    ACL_OPERATION_ALL: _ClassVar[AclOperation]
    ACL_OPERATION_READ: _ClassVar[AclOperation]
    ACL_OPERATION_WRITE: _ClassVar[AclOperation]
    ACL_OPERATION_CREATE: _ClassVar[AclOperation]
    ACL_OPERATION_DELETE: _ClassVar[AclOperation]
    ACL_OPERATION_ALTER: _ClassVar[AclOperation]
    ACL_OPERATION_DESCRIBE: _ClassVar[AclOperation]
    ACL_OPERATION_CLUSTER_ACTION: _ClassVar[AclOperation]
    ACL_OPERATION_DESCRIBE_CONFIGS: _ClassVar[AclOperation]
    ACL_OPERATION_ALTER_CONFIGS: _ClassVar[AclOperation]
    ACL_OPERATION_IDEMPOTENT_WRITE: _ClassVar[AclOperation]

class AclPermission(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACL_PERMISSION_ANY: _ClassVar[AclPermission]
    ACL_PERMISSION_ALLOW: _ClassVar[AclPermission]
    ACL_PERMISSION_DENY: _ClassVar[AclPermission]

class MaintenanceAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MAINTENANCE_ACTION_ROLL: _ClassVar[MaintenanceAction]
    MAINTENANCE_ACTION_COMPACT: _ClassVar[MaintenanceAction]
    MAINTENANCE_ACTION_CLEAN: _ClassVar[MaintenanceAction]
    MAINTENANCE_ACTION_UPGRADE: _ClassVar[MaintenanceAction]

class SwapKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SWAP_KIND_SAME_ROWS: _ClassVar[SwapKind]
    SWAP_KIND_LAST_OF_KEYS: _ClassVar[SwapKind]

class ResourceType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESOURCE_TYPE_TOPIC: _ClassVar[ResourceType]
    RESOURCE_TYPE_BROKER: _ClassVar[ResourceType]

class AlterOperation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALTER_OPERATION_SET: _ClassVar[AlterOperation]
    ALTER_OPERATION_DELETE: _ClassVar[AlterOperation]
    ALTER_OPERATION_APPEND: _ClassVar[AlterOperation]
    ALTER_OPERATION_SUBTRACT: _ClassVar[AlterOperation]
ERROR_CODE_NONE: ErrorCode
ERROR_CODE_UNKNOWN_SERVER_ERROR: ErrorCode
ERROR_CODE_OFFSET_OUT_OF_RANGE: ErrorCode
ERROR_CODE_CORRUPT_MESSAGE: ErrorCode
ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION: ErrorCode
ERROR_CODE_INVALID_FETCH_SIZE: ErrorCode
ERROR_CODE_LEADER_NOT_AVAILABLE: ErrorCode
ERROR_CODE_NOT_LEADER_OR_FOLLOWER: ErrorCode
ERROR_CODE_REQUEST_TIMED_OUT: ErrorCode
ERROR_CODE_BROKER_NOT_AVAILABLE: ErrorCode
ERROR_CODE_MESSAGE_TOO_LARGE: ErrorCode
ERROR_CODE_OFFSET_METADATA_TOO_LARGE: ErrorCode
ERROR_CODE_NETWORK_EXCEPTION: ErrorCode
ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS: ErrorCode
ERROR_CODE_COORDINATOR_NOT_AVAILABLE: ErrorCode
ERROR_CODE_NOT_COORDINATOR: ErrorCode
ERROR_CODE_INVALID_TOPIC_EXCEPTION: ErrorCode
ERROR_CODE_RECORD_LIST_TOO_LARGE: ErrorCode
ERROR_CODE_NOT_ENOUGH_REPLICAS: ErrorCode
ERROR_CODE_NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode
ERROR_CODE_INVALID_REQUIRED_ACKS: ErrorCode
ERROR_CODE_ILLEGAL_GENERATION: ErrorCode
ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL: ErrorCode
ERROR_CODE_INVALID_GROUP_ID: ErrorCode
ERROR_CODE_UNKNOWN_MEMBER_ID: ErrorCode
ERROR_CODE_INVALID_SESSION_TIMEOUT: ErrorCode
ERROR_CODE_REBALANCE_IN_PROGRESS: ErrorCode
ERROR_CODE_INVALID_COMMIT_OFFSET_SIZE: ErrorCode
ERROR_CODE_TOPIC_AUTHORIZATION_FAILED: ErrorCode
ERROR_CODE_GROUP_AUTHORIZATION_FAILED: ErrorCode
ERROR_CODE_CLUSTER_AUTHORIZATION_FAILED: ErrorCode
ERROR_CODE_INVALID_TIMESTAMP: ErrorCode
ERROR_CODE_UNSUPPORTED_SASL_MECHANISM: ErrorCode
ERROR_CODE_UNSUPPORTED_VERSION: ErrorCode
ERROR_CODE_TOPIC_ALREADY_EXISTS: ErrorCode
ERROR_CODE_INVALID_PARTITIONS: ErrorCode
ERROR_CODE_INVALID_REPLICATION_FACTOR: ErrorCode
ERROR_CODE_INVALID_REPLICA_ASSIGNMENT: ErrorCode
ERROR_CODE_INVALID_CONFIG: ErrorCode
ERROR_CODE_NOT_CONTROLLER: ErrorCode
ERROR_CODE_INVALID_REQUEST: ErrorCode
ERROR_CODE_POLICY_VIOLATION: ErrorCode
ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER: ErrorCode
ERROR_CODE_DUPLICATE_SEQUENCE_NUMBER: ErrorCode
ERROR_CODE_INVALID_PRODUCER_EPOCH: ErrorCode
ERROR_CODE_INVALID_TXN_STATE: ErrorCode
ERROR_CODE_INVALID_PRODUCER_ID_MAPPING: ErrorCode
ERROR_CODE_INVALID_TRANSACTION_TIMEOUT: ErrorCode
ERROR_CODE_CONCURRENT_TRANSACTIONS: ErrorCode
ERROR_CODE_TRANSACTION_COORDINATOR_FENCED: ErrorCode
ERROR_CODE_TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ErrorCode
ERROR_CODE_SECURITY_DISABLED: ErrorCode
ERROR_CODE_KAFKA_STORAGE_ERROR: ErrorCode
ERROR_CODE_SASL_AUTHENTICATION_FAILED: ErrorCode
ERROR_CODE_UNKNOWN_PRODUCER_ID: ErrorCode
ERROR_CODE_NON_EMPTY_GROUP: ErrorCode
ERROR_CODE_GROUP_ID_NOT_FOUND: ErrorCode
ERROR_CODE_FENCED_LEADER_EPOCH: ErrorCode
ERROR_CODE_UNKNOWN_LEADER_EPOCH: ErrorCode
ERROR_CODE_UNSUPPORTED_COMPRESSION_TYPE: ErrorCode
ERROR_CODE_STALE_BROKER_EPOCH: ErrorCode
ERROR_CODE_OFFSET_NOT_AVAILABLE: ErrorCode
ERROR_CODE_MEMBER_ID_REQUIRED: ErrorCode
ERROR_CODE_PREFERRED_LEADER_NOT_AVAILABLE: ErrorCode
ERROR_CODE_GROUP_MAX_SIZE_REACHED: ErrorCode
ERROR_CODE_FENCED_INSTANCE_ID: ErrorCode
ERROR_CODE_ELECTION_NOT_NEEDED: ErrorCode
ERROR_CODE_NO_REASSIGNMENT_IN_PROGRESS: ErrorCode
ERROR_CODE_GROUP_SUBSCRIBED_TO_TOPIC: ErrorCode
ERROR_CODE_INVALID_RECORD: ErrorCode
ERROR_CODE_UNSTABLE_OFFSET_COMMIT: ErrorCode
ERROR_CODE_THROTTLING_QUOTA_EXCEEDED: ErrorCode
ERROR_CODE_PRODUCER_FENCED: ErrorCode
ERROR_CODE_RESOURCE_NOT_FOUND: ErrorCode
ERROR_CODE_DUPLICATE_RESOURCE: ErrorCode
ERROR_CODE_UNACCEPTABLE_CREDENTIAL: ErrorCode
ERROR_CODE_INVALID_UPDATE_VERSION: ErrorCode
ERROR_CODE_UNKNOWN_TOPIC_ID: ErrorCode
ERROR_CODE_DUPLICATE_BROKER_REGISTRATION: ErrorCode
ERROR_CODE_BROKER_ID_NOT_REGISTERED: ErrorCode
ERROR_CODE_INCONSISTENT_TOPIC_ID: ErrorCode
ERROR_CODE_TRANSACTIONAL_ID_NOT_FOUND: ErrorCode
ERROR_CODE_INVALID_REGISTRATION: ErrorCode
ERROR_CODE_TRANSACTION_ABORTABLE: ErrorCode
ERROR_CODE_INVALID_REGULAR_EXPRESSION: ErrorCode
PAYLOAD_CODEC_NONE: PayloadCodec
PAYLOAD_CODEC_GZIP: PayloadCodec
PAYLOAD_CODEC_SNAPPY: PayloadCodec
RECORD_FORMAT_ARROW: RecordFormat
RECORD_FORMAT_RECORDS: RecordFormat
FETCH_SESSION_NONE: FetchSession
FETCH_SESSION_BEGIN: FetchSession
FETCH_SESSION_CONTINUE: FetchSession
COORDINATOR_TYPE_GROUP: CoordinatorType
COORDINATOR_TYPE_TRANSACTION: CoordinatorType
ACL_RESOURCE_TYPE_ANY: AclResourceType
ACL_RESOURCE_TYPE_TOPIC: AclResourceType
ACL_RESOURCE_TYPE_GROUP: AclResourceType
ACL_RESOURCE_TYPE_CLUSTER: AclResourceType
ACL_RESOURCE_TYPE_TRANSACTIONAL_ID: AclResourceType
ACL_PATTERN_TYPE_ANY: AclPatternType
ACL_PATTERN_TYPE_LITERAL: AclPatternType
ACL_PATTERN_TYPE_PREFIXED: AclPatternType
ACL_PATTERN_TYPE_MATCH: AclPatternType
ACL_OPERATION_ANY: AclOperation
ACL_OPERATION_ALL: AclOperation
ACL_OPERATION_READ: AclOperation
ACL_OPERATION_WRITE: AclOperation
ACL_OPERATION_CREATE: AclOperation
ACL_OPERATION_DELETE: AclOperation
ACL_OPERATION_ALTER: AclOperation
ACL_OPERATION_DESCRIBE: AclOperation
ACL_OPERATION_CLUSTER_ACTION: AclOperation
ACL_OPERATION_DESCRIBE_CONFIGS: AclOperation
ACL_OPERATION_ALTER_CONFIGS: AclOperation
ACL_OPERATION_IDEMPOTENT_WRITE: AclOperation
ACL_PERMISSION_ANY: AclPermission
ACL_PERMISSION_ALLOW: AclPermission
ACL_PERMISSION_DENY: AclPermission
MAINTENANCE_ACTION_ROLL: MaintenanceAction
MAINTENANCE_ACTION_COMPACT: MaintenanceAction
MAINTENANCE_ACTION_CLEAN: MaintenanceAction
MAINTENANCE_ACTION_UPGRADE: MaintenanceAction
SWAP_KIND_SAME_ROWS: SwapKind
SWAP_KIND_LAST_OF_KEYS: SwapKind
RESOURCE_TYPE_TOPIC: ResourceType
RESOURCE_TYPE_BROKER: ResourceType
ALTER_OPERATION_SET: AlterOperation
ALTER_OPERATION_DELETE: AlterOperation
ALTER_OPERATION_APPEND: AlterOperation
ALTER_OPERATION_SUBTRACT: AlterOperation

class Header(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("key", "value", "headers", "timestamp_ms", "offset", "timestamp_type", "leader_epoch")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_TYPE_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    timestamp_ms: int
    offset: int
    timestamp_type: int
    leader_epoch: int
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., timestamp_ms: _Optional[int] = ..., offset: _Optional[int] = ..., timestamp_type: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class RecordList(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    def __init__(self, records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ...) -> None: ...

class ApiVersionsRequest(_message.Message):
    __slots__ = ("client_software_name", "client_software_version", "contract_digest")
    CLIENT_SOFTWARE_NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENT_SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    client_software_name: str
    client_software_version: str
    contract_digest: bytes
    def __init__(self, client_software_name: _Optional[str] = ..., client_software_version: _Optional[str] = ..., contract_digest: _Optional[bytes] = ...) -> None: ...

class ApiVersionsResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "contract_version", "broker_software_version", "calls", "features", "contract")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_VERSION_FIELD_NUMBER: _ClassVar[int]
    BROKER_SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    contract_version: int
    broker_software_version: str
    calls: _containers.RepeatedScalarFieldContainer[str]
    features: _containers.RepeatedCompositeFieldContainer[Feature]
    contract: bytes
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., contract_version: _Optional[int] = ..., broker_software_version: _Optional[str] = ..., calls: _Optional[_Iterable[str]] = ..., features: _Optional[_Iterable[_Union[Feature, _Mapping]]] = ..., contract: _Optional[bytes] = ...) -> None: ...

class Feature(_message.Message):
    __slots__ = ("name", "level", "min_level", "max_level")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    MIN_LEVEL_FIELD_NUMBER: _ClassVar[int]
    MAX_LEVEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    level: int
    min_level: int
    max_level: int
    def __init__(self, name: _Optional[str] = ..., level: _Optional[int] = ..., min_level: _Optional[int] = ..., max_level: _Optional[int] = ...) -> None: ...

class ProduceRequest(_message.Message):
    __slots__ = ("correlation_id", "acks", "timeout_ms", "partitions", "transactional_id", "names_last_sequences")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    NAMES_LAST_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    acks: int
    timeout_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionProduceData]
    transactional_id: str
    names_last_sequences: bool
    def __init__(self, correlation_id: _Optional[int] = ..., acks: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionProduceData, _Mapping]]] = ..., transactional_id: _Optional[str] = ..., names_last_sequences: _Optional[bool] = ...) -> None: ...

class PartitionProduceData(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "current_leader_epoch", "arrow", "records", "timestamp_ms", "producer_id", "producer_epoch", "base_sequence", "codec", "uncompressed_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    UNCOMPRESSED_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    current_leader_epoch: int
    arrow: bytes
    records: RecordList
    timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    codec: PayloadCodec
    uncompressed_bytes: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., current_leader_epoch: _Optional[int] = ..., arrow: _Optional[bytes] = ..., records: _Optional[_Union[RecordList, _Mapping]] = ..., timestamp_ms: _Optional[int] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., base_sequence: _Optional[int] = ..., codec: _Optional[_Union[PayloadCodec, str]] = ..., uncompressed_bytes: _Optional[int] = ...) -> None: ...

class ProduceResponse(_message.Message):
    __slots__ = ("correlation_id", "partitions", "throttle_time_ms")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionProduceResponse]
    throttle_time_ms: int
    def __init__(self, correlation_id: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionProduceResponse, _Mapping]]] = ..., throttle_time_ms: _Optional[int] = ...) -> None: ...

class PartitionProduceResponse(_message.Message):
    __slots__ = ("topic", "partition", "error_code", "error_message", "base_offset", "log_append_time_ms", "version", "log_start_offset", "offsets", "record_errors", "current_leader")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_APPEND_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RECORD_ERRORS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error_code: ErrorCode
    error_message: str
    base_offset: int
    log_append_time_ms: int
    version: int
    log_start_offset: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    record_errors: _containers.RepeatedCompositeFieldContainer[RecordError]
    current_leader: CurrentLeader
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., base_offset: _Optional[int] = ..., log_append_time_ms: _Optional[int] = ..., version: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., record_errors: _Optional[_Iterable[_Union[RecordError, _Mapping]]] = ..., current_leader: _Optional[_Union[CurrentLeader, _Mapping]] = ...) -> None: ...

class CurrentLeader(_message.Message):
    __slots__ = ("broker", "leader_epoch")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker: Broker
    leader_epoch: int
    def __init__(self, broker: _Optional[_Union[Broker, _Mapping]] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class RecordError(_message.Message):
    __slots__ = ("index", "message")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    index: int
    message: str
    def __init__(self, index: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class InitProducerIdRequest(_message.Message):
    __slots__ = ("name", "producer_id", "producer_epoch", "keep_epoch", "transactional_id", "transaction_timeout_ms", "instance_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    KEEP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    producer_id: int
    producer_epoch: int
    keep_epoch: bool
    transactional_id: str
    transaction_timeout_ms: int
    instance_id: bytes
    def __init__(self, name: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., keep_epoch: _Optional[bool] = ..., transactional_id: _Optional[str] = ..., transaction_timeout_ms: _Optional[int] = ..., instance_id: _Optional[bytes] = ...) -> None: ...

class InitProducerIdResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "producer_id", "producer_epoch")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    producer_id: int
    producer_epoch: int
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class ResumeProducerRequest(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "partitions")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    partitions: _containers.RepeatedCompositeFieldContainer[ResumeProducerPartition]
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[ResumeProducerPartition, _Mapping]]] = ...) -> None: ...

class ResumeProducerPartition(_message.Message):
    __slots__ = ("topic", "partition", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ...) -> None: ...

class ResumeProducerResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ResumeProducerPartitionResponse]
    def __init__(self, partitions: _Optional[_Iterable[_Union[ResumeProducerPartitionResponse, _Mapping]]] = ...) -> None: ...

class ResumeProducerPartitionResponse(_message.Message):
    __slots__ = ("topic", "partition", "error_code", "error_message", "last_sequence", "last_epoch", "version")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error_code: ErrorCode
    error_message: str
    last_sequence: int
    last_epoch: int
    version: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., last_sequence: _Optional[int] = ..., last_epoch: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("correlation_id", "max_wait_ms", "min_bytes", "max_bytes", "partitions", "columns", "format", "rack_id", "session", "forgotten")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    RACK_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: _containers.RepeatedCompositeFieldContainer[FetchPartition]
    columns: _containers.RepeatedScalarFieldContainer[str]
    format: RecordFormat
    rack_id: str
    session: FetchSession
    forgotten: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    def __init__(self, correlation_id: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., min_bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[FetchPartition, _Mapping]]] = ..., columns: _Optional[_Iterable[str]] = ..., format: _Optional[_Union[RecordFormat, str]] = ..., rack_id: _Optional[str] = ..., session: _Optional[_Union[FetchSession, str]] = ..., forgotten: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ...) -> None: ...

class FetchPartition(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "fetch_offset", "partition_max_bytes", "current_leader_epoch", "seen_version")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    FETCH_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTITION_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEEN_VERSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: str
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int
    seen_version: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[str] = ..., fetch_offset: _Optional[int] = ..., partition_max_bytes: _Optional[int] = ..., current_leader_epoch: _Optional[int] = ..., seen_version: _Optional[int] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("correlation_id", "partitions", "throttle_time_ms", "in_session")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    IN_SESSION_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionFetchResponse]
    throttle_time_ms: int
    in_session: bool
    def __init__(self, correlation_id: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionFetchResponse, _Mapping]]] = ..., throttle_time_ms: _Optional[int] = ..., in_session: _Optional[bool] = ...) -> None: ...

class PartitionFetchResponse(_message.Message):
    __slots__ = ("topic", "partition", "error_code", "error_message", "high_watermark", "log_start_offset", "version", "batches", "records", "current_leader", "preferred_read_replica")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_READ_REPLICA_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error_code: ErrorCode
    error_message: str
    high_watermark: int
    log_start_offset: int
    version: int
    batches: _containers.RepeatedCompositeFieldContainer[LogBatch]
    records: RecordList
    current_leader: CurrentLeader
    preferred_read_replica: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., high_watermark: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., version: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[LogBatch, _Mapping]]] = ..., records: _Optional[_Union[RecordList, _Mapping]] = ..., current_leader: _Optional[_Union[CurrentLeader, _Mapping]] = ..., preferred_read_replica: _Optional[int] = ...) -> None: ...

class LogBatch(_message.Message):
    __slots__ = ("base_offset", "next_offset", "record_count", "leader_epoch", "timestamp_type", "timestamp_ms", "arrow", "producer_id", "producer_epoch", "base_sequence")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_TYPE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    next_offset: int
    record_count: int
    leader_epoch: int
    timestamp_type: int
    timestamp_ms: int
    arrow: bytes
    producer_id: int
    producer_epoch: int
    base_sequence: int
    def __init__(self, base_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., timestamp_type: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., arrow: _Optional[bytes] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., base_sequence: _Optional[int] = ...) -> None: ...

class FindCoordinatorRequest(_message.Message):
    __slots__ = ("key", "key_type")
    KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_TYPE_FIELD_NUMBER: _ClassVar[int]
    key: str
    key_type: CoordinatorType
    def __init__(self, key: _Optional[str] = ..., key_type: _Optional[_Union[CoordinatorType, str]] = ...) -> None: ...

class FindCoordinatorResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "coordinator")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    coordinator: Broker
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., coordinator: _Optional[_Union[Broker, _Mapping]] = ...) -> None: ...

class GroupProtocol(_message.Message):
    __slots__ = ("name", "metadata")
    NAME_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    metadata: bytes
    def __init__(self, name: _Optional[str] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class ConsumerSubscription(_message.Message):
    __slots__ = ("topics", "user_data", "owned", "generation", "rack")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    USER_DATA_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    user_data: bytes
    owned: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    generation: int
    rack: str
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., user_data: _Optional[bytes] = ..., owned: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., generation: _Optional[int] = ..., rack: _Optional[str] = ...) -> None: ...

class ConsumerAssignment(_message.Message):
    __slots__ = ("partitions", "user_data")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    USER_DATA_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    user_data: bytes
    def __init__(self, partitions: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., user_data: _Optional[bytes] = ...) -> None: ...

class TopicPartitions(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class JoinGroupRequest(_message.Message):
    __slots__ = ("group_id", "member_id", "group_instance_id", "session_timeout_ms", "rebalance_timeout_ms", "protocol_type", "protocols", "client_id", "reason")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    member_id: str
    group_instance_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: _containers.RepeatedCompositeFieldContainer[GroupProtocol]
    client_id: str
    reason: str
    def __init__(self, group_id: _Optional[str] = ..., member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., protocol_type: _Optional[str] = ..., protocols: _Optional[_Iterable[_Union[GroupProtocol, _Mapping]]] = ..., client_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class JoinGroupResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "generation", "protocol_type", "protocol", "leader_id", "member_id", "members", "skip_assignment")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SKIP_ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    generation: int
    protocol_type: str
    protocol: str
    leader_id: str
    member_id: str
    members: _containers.RepeatedCompositeFieldContainer[JoinedMember]
    skip_assignment: bool
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., generation: _Optional[int] = ..., protocol_type: _Optional[str] = ..., protocol: _Optional[str] = ..., leader_id: _Optional[str] = ..., member_id: _Optional[str] = ..., members: _Optional[_Iterable[_Union[JoinedMember, _Mapping]]] = ..., skip_assignment: _Optional[bool] = ...) -> None: ...

class JoinedMember(_message.Message):
    __slots__ = ("member_id", "group_instance_id", "metadata", "assignment")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    group_instance_id: str
    metadata: bytes
    assignment: bytes
    def __init__(self, member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., metadata: _Optional[bytes] = ..., assignment: _Optional[bytes] = ...) -> None: ...

class SyncGroupRequest(_message.Message):
    __slots__ = ("group_id", "generation", "member_id", "group_instance_id", "protocol_type", "protocol", "assignments")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    generation: int
    member_id: str
    group_instance_id: str
    protocol_type: str
    protocol: str
    assignments: _containers.RepeatedCompositeFieldContainer[MemberAssignment]
    def __init__(self, group_id: _Optional[str] = ..., generation: _Optional[int] = ..., member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., protocol_type: _Optional[str] = ..., protocol: _Optional[str] = ..., assignments: _Optional[_Iterable[_Union[MemberAssignment, _Mapping]]] = ...) -> None: ...

class MemberAssignment(_message.Message):
    __slots__ = ("member_id", "assignment")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    assignment: bytes
    def __init__(self, member_id: _Optional[str] = ..., assignment: _Optional[bytes] = ...) -> None: ...

class SyncGroupResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "protocol_type", "protocol", "assignment")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    protocol_type: str
    protocol: str
    assignment: bytes
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., protocol_type: _Optional[str] = ..., protocol: _Optional[str] = ..., assignment: _Optional[bytes] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("group_id", "generation", "member_id", "group_instance_id")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    generation: int
    member_id: str
    group_instance_id: str
    def __init__(self, group_id: _Optional[str] = ..., generation: _Optional[int] = ..., member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("error_code", "error_message")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class LeaveGroupRequest(_message.Message):
    __slots__ = ("group_id", "members")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    members: _containers.RepeatedCompositeFieldContainer[LeavingMember]
    def __init__(self, group_id: _Optional[str] = ..., members: _Optional[_Iterable[_Union[LeavingMember, _Mapping]]] = ...) -> None: ...

class LeavingMember(_message.Message):
    __slots__ = ("member_id", "group_instance_id", "reason")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    group_instance_id: str
    reason: str
    def __init__(self, member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveGroupResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "members")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    members: _containers.RepeatedCompositeFieldContainer[LeftMember]
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., members: _Optional[_Iterable[_Union[LeftMember, _Mapping]]] = ...) -> None: ...

class LeftMember(_message.Message):
    __slots__ = ("member_id", "group_instance_id", "error_code", "error_message")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    group_instance_id: str
    error_code: ErrorCode
    error_message: str
    def __init__(self, member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class OffsetCommitRequest(_message.Message):
    __slots__ = ("group_id", "generation", "member_id", "group_instance_id", "partitions")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    generation: int
    member_id: str
    group_instance_id: str
    partitions: _containers.RepeatedCompositeFieldContainer[OffsetCommitPartition]
    def __init__(self, group_id: _Optional[str] = ..., generation: _Optional[int] = ..., member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[OffsetCommitPartition, _Mapping]]] = ...) -> None: ...

class OffsetCommitPartition(_message.Message):
    __slots__ = ("topic", "partition", "offset", "leader_epoch", "metadata")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ...) -> None: ...

class OffsetCommitResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[OffsetCommitPartitionResponse]
    def __init__(self, partitions: _Optional[_Iterable[_Union[OffsetCommitPartitionResponse, _Mapping]]] = ...) -> None: ...

class OffsetCommitPartitionResponse(_message.Message):
    __slots__ = ("topic", "partition", "error_code", "error_message")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error_code: ErrorCode
    error_message: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class OffsetFetchRequest(_message.Message):
    __slots__ = ("groups", "require_stable")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_STABLE_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[OffsetFetchGroup]
    require_stable: bool
    def __init__(self, groups: _Optional[_Iterable[_Union[OffsetFetchGroup, _Mapping]]] = ..., require_stable: _Optional[bool] = ...) -> None: ...

class OffsetFetchGroup(_message.Message):
    __slots__ = ("group_id", "all_partitions", "topics", "member_id", "generation")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ALL_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    all_partitions: bool
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    member_id: str
    generation: int
    def __init__(self, group_id: _Optional[str] = ..., all_partitions: _Optional[bool] = ..., topics: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., member_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class OffsetFetchResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[OffsetFetchGroupResponse]
    def __init__(self, groups: _Optional[_Iterable[_Union[OffsetFetchGroupResponse, _Mapping]]] = ...) -> None: ...

class OffsetFetchGroupResponse(_message.Message):
    __slots__ = ("group_id", "error_code", "error_message", "offsets")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    error_code: ErrorCode
    error_message: str
    offsets: _containers.RepeatedCompositeFieldContainer[CommittedOffset]
    def __init__(self, group_id: _Optional[str] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[CommittedOffset, _Mapping]]] = ...) -> None: ...

class CommittedOffset(_message.Message):
    __slots__ = ("topic", "partition", "offset", "leader_epoch", "metadata", "commit_ms", "error_code", "error_message")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMIT_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    error_code: ErrorCode
    error_message: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ..., commit_ms: _Optional[int] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class OffsetDeleteRequest(_message.Message):
    __slots__ = ("group_id", "topics")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    def __init__(self, group_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ...) -> None: ...

class OffsetDeleteResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "partitions")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    partitions: _containers.RepeatedCompositeFieldContainer[OffsetCommitPartitionResponse]
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[OffsetCommitPartitionResponse, _Mapping]]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("states",)
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, states: _Optional[_Iterable[str]] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "groups")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    groups: _containers.RepeatedCompositeFieldContainer[ListedGroup]
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[ListedGroup, _Mapping]]] = ...) -> None: ...

class ListedGroup(_message.Message):
    __slots__ = ("group_id", "protocol_type", "state")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    protocol_type: str
    state: str
    def __init__(self, group_id: _Optional[str] = ..., protocol_type: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...

class DescribeGroupsRequest(_message.Message):
    __slots__ = ("group_ids", "include_authorized_operations")
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_AUTHORIZED_OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    group_ids: _containers.RepeatedScalarFieldContainer[str]
    include_authorized_operations: bool
    def __init__(self, group_ids: _Optional[_Iterable[str]] = ..., include_authorized_operations: _Optional[bool] = ...) -> None: ...

class DescribeGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[DescribedGroup]
    def __init__(self, groups: _Optional[_Iterable[_Union[DescribedGroup, _Mapping]]] = ...) -> None: ...

class DescribedGroup(_message.Message):
    __slots__ = ("group_id", "error_code", "error_message", "state", "protocol_type", "protocol", "generation", "leader_id", "coordinator", "members", "pending_offsets", "authorized_operations")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PENDING_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZED_OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    error_code: ErrorCode
    error_message: str
    state: str
    protocol_type: str
    protocol: str
    generation: int
    leader_id: str
    coordinator: Broker
    members: _containers.RepeatedCompositeFieldContainer[DescribedMember]
    pending_offsets: _containers.RepeatedCompositeFieldContainer[PendingOffsets]
    authorized_operations: _containers.RepeatedScalarFieldContainer[AclOperation]
    def __init__(self, group_id: _Optional[str] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., state: _Optional[str] = ..., protocol_type: _Optional[str] = ..., protocol: _Optional[str] = ..., generation: _Optional[int] = ..., leader_id: _Optional[str] = ..., coordinator: _Optional[_Union[Broker, _Mapping]] = ..., members: _Optional[_Iterable[_Union[DescribedMember, _Mapping]]] = ..., pending_offsets: _Optional[_Iterable[_Union[PendingOffsets, _Mapping]]] = ..., authorized_operations: _Optional[_Iterable[_Union[AclOperation, str]]] = ...) -> None: ...

class PendingOffsets(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "offset_count", "commit_ms")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_COUNT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_MS_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    offset_count: int
    commit_ms: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., offset_count: _Optional[int] = ..., commit_ms: _Optional[int] = ...) -> None: ...

class DescribedMember(_message.Message):
    __slots__ = ("member_id", "group_instance_id", "client_id", "client_host", "metadata", "assignment", "session_timeout_ms", "rebalance_timeout_ms")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_HOST_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    group_instance_id: str
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes
    session_timeout_ms: int
    rebalance_timeout_ms: int
    def __init__(self, member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., client_host: _Optional[str] = ..., metadata: _Optional[bytes] = ..., assignment: _Optional[bytes] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ...) -> None: ...

class DeleteGroupsRequest(_message.Message):
    __slots__ = ("group_ids",)
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    group_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[DeletedGroup]
    def __init__(self, groups: _Optional[_Iterable[_Union[DeletedGroup, _Mapping]]] = ...) -> None: ...

class DeletedGroup(_message.Message):
    __slots__ = ("group_id", "error_code", "error_message")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    error_code: ErrorCode
    error_message: str
    def __init__(self, group_id: _Optional[str] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class GroupSessionRequest(_message.Message):
    __slots__ = ("correlation_id", "heartbeat", "offset_commit")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_COMMIT_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    heartbeat: HeartbeatRequest
    offset_commit: OffsetCommitRequest
    def __init__(self, correlation_id: _Optional[int] = ..., heartbeat: _Optional[_Union[HeartbeatRequest, _Mapping]] = ..., offset_commit: _Optional[_Union[OffsetCommitRequest, _Mapping]] = ...) -> None: ...

class GroupSessionResponse(_message.Message):
    __slots__ = ("correlation_id", "heartbeat", "offset_commit")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_COMMIT_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    heartbeat: HeartbeatResponse
    offset_commit: OffsetCommitResponse
    def __init__(self, correlation_id: _Optional[int] = ..., heartbeat: _Optional[_Union[HeartbeatResponse, _Mapping]] = ..., offset_commit: _Optional[_Union[OffsetCommitResponse, _Mapping]] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ListOffsetsPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[ListOffsetsPartition, _Mapping]]] = ...) -> None: ...

class ListOffsetsPartition(_message.Message):
    __slots__ = ("topic", "partition", "timestamp_ms", "current_leader_epoch", "version")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    timestamp_ms: int
    current_leader_epoch: int
    version: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., current_leader_epoch: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class ListOffsetsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ListOffsetsPartitionResponse]
    def __init__(self, partitions: _Optional[_Iterable[_Union[ListOffsetsPartitionResponse, _Mapping]]] = ...) -> None: ...

class ListOffsetsPartitionResponse(_message.Message):
    __slots__ = ("topic", "partition", "error_code", "error_message", "offset", "timestamp_ms", "leader_epoch", "version")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error_code: ErrorCode
    error_message: str
    offset: int
    timestamp_ms: int
    leader_epoch: int
    version: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class MetadataRequest(_message.Message):
    __slots__ = ("topics", "allow_auto_topic_creation", "include_authorized_operations")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_AUTO_TOPIC_CREATION_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_AUTHORIZED_OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    allow_auto_topic_creation: bool
    include_authorized_operations: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., allow_auto_topic_creation: _Optional[bool] = ..., include_authorized_operations: _Optional[bool] = ...) -> None: ...

class MetadataResponse(_message.Message):
    __slots__ = ("cluster_id", "controller_id", "brokers", "topics", "root", "metadata_offset")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    controller_id: int
    brokers: _containers.RepeatedCompositeFieldContainer[Broker]
    topics: _containers.RepeatedCompositeFieldContainer[TopicMetadata]
    root: str
    metadata_offset: int
    def __init__(self, cluster_id: _Optional[str] = ..., controller_id: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[Broker, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicMetadata, _Mapping]]] = ..., root: _Optional[str] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class Broker(_message.Message):
    __slots__ = ("broker_id", "host", "port")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    host: str
    port: int
    def __init__(self, broker_id: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class TopicMetadata(_message.Message):
    __slots__ = ("error_code", "error_message", "name", "topic_id", "is_internal", "partitions", "authorized_operations")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    IS_INTERNAL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZED_OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    name: str
    topic_id: str
    is_internal: bool
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionMetadata]
    authorized_operations: _containers.RepeatedScalarFieldContainer[AclOperation]
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., name: _Optional[str] = ..., topic_id: _Optional[str] = ..., is_internal: _Optional[bool] = ..., partitions: _Optional[_Iterable[_Union[PartitionMetadata, _Mapping]]] = ..., authorized_operations: _Optional[_Iterable[_Union[AclOperation, str]]] = ...) -> None: ...

class PartitionMetadata(_message.Message):
    __slots__ = ("error_code", "error_message", "partition", "leader_id", "leader_epoch", "replica_ids", "isr_ids", "is_offline")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICA_IDS_FIELD_NUMBER: _ClassVar[int]
    ISR_IDS_FIELD_NUMBER: _ClassVar[int]
    IS_OFFLINE_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    partition: int
    leader_id: int
    leader_epoch: int
    replica_ids: _containers.RepeatedScalarFieldContainer[int]
    isr_ids: _containers.RepeatedScalarFieldContainer[int]
    is_offline: bool
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., partition: _Optional[int] = ..., leader_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., replica_ids: _Optional[_Iterable[int]] = ..., isr_ids: _Optional[_Iterable[int]] = ..., is_offline: _Optional[bool] = ...) -> None: ...

class DescribeClusterRequest(_message.Message):
    __slots__ = ("include_fenced_brokers", "include_authorized_operations")
    INCLUDE_FENCED_BROKERS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_AUTHORIZED_OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    include_fenced_brokers: bool
    include_authorized_operations: bool
    def __init__(self, include_fenced_brokers: _Optional[bool] = ..., include_authorized_operations: _Optional[bool] = ...) -> None: ...

class DescribeClusterResponse(_message.Message):
    __slots__ = ("cluster_id", "root", "controller_id", "controller_epoch", "feature_level", "brokers", "under_replicated_partitions", "offline_partitions", "authorized_operations", "error_code", "error_message")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    UNDER_REPLICATED_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZED_OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    root: str
    controller_id: int
    controller_epoch: int
    feature_level: int
    brokers: _containers.RepeatedCompositeFieldContainer[ClusterBroker]
    under_replicated_partitions: int
    offline_partitions: int
    authorized_operations: _containers.RepeatedScalarFieldContainer[AclOperation]
    error_code: ErrorCode
    error_message: str
    def __init__(self, cluster_id: _Optional[str] = ..., root: _Optional[str] = ..., controller_id: _Optional[int] = ..., controller_epoch: _Optional[int] = ..., feature_level: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[ClusterBroker, _Mapping]]] = ..., under_replicated_partitions: _Optional[int] = ..., offline_partitions: _Optional[int] = ..., authorized_operations: _Optional[_Iterable[_Union[AclOperation, str]]] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class ClusterBroker(_message.Message):
    __slots__ = ("broker_id", "host", "port", "rack", "is_fenced", "broker_epoch", "incarnation_id", "leader_count", "replica_count", "min_feature_level", "max_feature_level")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    IS_FENCED_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    MIN_FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    MAX_FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    host: str
    port: int
    rack: str
    is_fenced: bool
    broker_epoch: int
    incarnation_id: str
    leader_count: int
    replica_count: int
    min_feature_level: int
    max_feature_level: int
    def __init__(self, broker_id: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., rack: _Optional[str] = ..., is_fenced: _Optional[bool] = ..., broker_epoch: _Optional[int] = ..., incarnation_id: _Optional[str] = ..., leader_count: _Optional[int] = ..., replica_count: _Optional[int] = ..., min_feature_level: _Optional[int] = ..., max_feature_level: _Optional[int] = ...) -> None: ...

class ElectLeadersRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ...) -> None: ...

class ElectLeadersResponse(_message.Message):
    __slots__ = ("partitions", "error_code", "error_message")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ElectedLeader]
    error_code: ErrorCode
    error_message: str
    def __init__(self, partitions: _Optional[_Iterable[_Union[ElectedLeader, _Mapping]]] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class ElectedLeader(_message.Message):
    __slots__ = ("topic", "partition", "error_code", "error_message", "leader_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error_code: ErrorCode
    error_message: str
    leader_id: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., leader_id: _Optional[int] = ...) -> None: ...

class AlterPartitionReassignmentsRequest(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionReassignment]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionReassignment, _Mapping]]] = ...) -> None: ...

class PartitionReassignment(_message.Message):
    __slots__ = ("topic", "partition", "replica_ids", "cancel")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_IDS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    replica_ids: _containers.RepeatedScalarFieldContainer[int]
    cancel: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., replica_ids: _Optional[_Iterable[int]] = ..., cancel: _Optional[bool] = ...) -> None: ...

class AlterPartitionReassignmentsResponse(_message.Message):
    __slots__ = ("partitions", "error_code", "error_message")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionReassignmentResult]
    error_code: ErrorCode
    error_message: str
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionReassignmentResult, _Mapping]]] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class PartitionReassignmentResult(_message.Message):
    __slots__ = ("topic", "partition", "error_code", "error_message")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error_code: ErrorCode
    error_message: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class ListPartitionReassignmentsRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ...) -> None: ...

class ListPartitionReassignmentsResponse(_message.Message):
    __slots__ = ("partitions", "error_code", "error_message")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[OngoingReassignment]
    error_code: ErrorCode
    error_message: str
    def __init__(self, partitions: _Optional[_Iterable[_Union[OngoingReassignment, _Mapping]]] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class OngoingReassignment(_message.Message):
    __slots__ = ("topic", "partition", "replica_ids", "adding_replica_ids", "removing_replica_ids")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_IDS_FIELD_NUMBER: _ClassVar[int]
    ADDING_REPLICA_IDS_FIELD_NUMBER: _ClassVar[int]
    REMOVING_REPLICA_IDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    replica_ids: _containers.RepeatedScalarFieldContainer[int]
    adding_replica_ids: _containers.RepeatedScalarFieldContainer[int]
    removing_replica_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., replica_ids: _Optional[_Iterable[int]] = ..., adding_replica_ids: _Optional[_Iterable[int]] = ..., removing_replica_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class UnregisterBrokerRequest(_message.Message):
    __slots__ = ("broker_id",)
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    def __init__(self, broker_id: _Optional[int] = ...) -> None: ...

class UnregisterBrokerResponse(_message.Message):
    __slots__ = ("error_code", "error_message")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class UpdateFeaturesRequest(_message.Message):
    __slots__ = ("feature", "level", "validate_only")
    FEATURE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    feature: str
    level: int
    validate_only: bool
    def __init__(self, feature: _Optional[str] = ..., level: _Optional[int] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class UpdateFeaturesResponse(_message.Message):
    __slots__ = ("error_code", "error_message")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class QuotaEntityPart(_message.Message):
    __slots__ = ("type", "name")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    type: str
    name: str
    def __init__(self, type: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DescribeClientQuotasRequest(_message.Message):
    __slots__ = ("parts", "strict")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[QuotaFilterPart]
    strict: bool
    def __init__(self, parts: _Optional[_Iterable[_Union[QuotaFilterPart, _Mapping]]] = ..., strict: _Optional[bool] = ...) -> None: ...

class QuotaFilterPart(_message.Message):
    __slots__ = ("part", "any_name")
    PART_FIELD_NUMBER: _ClassVar[int]
    ANY_NAME_FIELD_NUMBER: _ClassVar[int]
    part: QuotaEntityPart
    any_name: bool
    def __init__(self, part: _Optional[_Union[QuotaEntityPart, _Mapping]] = ..., any_name: _Optional[bool] = ...) -> None: ...

class DescribeClientQuotasResponse(_message.Message):
    __slots__ = ("entries", "error_code", "error_message")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[QuotasOfEntity]
    error_code: ErrorCode
    error_message: str
    def __init__(self, entries: _Optional[_Iterable[_Union[QuotasOfEntity, _Mapping]]] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class QuotasOfEntity(_message.Message):
    __slots__ = ("entity", "quotas")
    class QuotasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    entity: _containers.RepeatedCompositeFieldContainer[QuotaEntityPart]
    quotas: _containers.ScalarMap[str, float]
    def __init__(self, entity: _Optional[_Iterable[_Union[QuotaEntityPart, _Mapping]]] = ..., quotas: _Optional[_Mapping[str, float]] = ...) -> None: ...

class AlterClientQuotasRequest(_message.Message):
    __slots__ = ("entries", "validate_only")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[QuotaAlteration]
    validate_only: bool
    def __init__(self, entries: _Optional[_Iterable[_Union[QuotaAlteration, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class QuotaAlteration(_message.Message):
    __slots__ = ("entity", "changes")
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    entity: _containers.RepeatedCompositeFieldContainer[QuotaEntityPart]
    changes: _containers.RepeatedCompositeFieldContainer[QuotaChange]
    def __init__(self, entity: _Optional[_Iterable[_Union[QuotaEntityPart, _Mapping]]] = ..., changes: _Optional[_Iterable[_Union[QuotaChange, _Mapping]]] = ...) -> None: ...

class QuotaChange(_message.Message):
    __slots__ = ("name", "value", "remove")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    remove: bool
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., remove: _Optional[bool] = ...) -> None: ...

class AlterClientQuotasResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AlteredQuotas]
    def __init__(self, entries: _Optional[_Iterable[_Union[AlteredQuotas, _Mapping]]] = ...) -> None: ...

class AlteredQuotas(_message.Message):
    __slots__ = ("entity", "error_code", "error_message")
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    entity: _containers.RepeatedCompositeFieldContainer[QuotaEntityPart]
    error_code: ErrorCode
    error_message: str
    def __init__(self, entity: _Optional[_Iterable[_Union[QuotaEntityPart, _Mapping]]] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class DescribeQuotaUsageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeQuotaUsageResponse(_message.Message):
    __slots__ = ("entries", "error_code", "error_message")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[QuotaUsage]
    error_code: ErrorCode
    error_message: str
    def __init__(self, entries: _Optional[_Iterable[_Union[QuotaUsage, _Mapping]]] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class QuotaUsage(_message.Message):
    __slots__ = ("entity", "quota", "limit", "rate", "throttle_time_ms")
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    entity: _containers.RepeatedCompositeFieldContainer[QuotaEntityPart]
    quota: str
    limit: float
    rate: float
    throttle_time_ms: int
    def __init__(self, entity: _Optional[_Iterable[_Union[QuotaEntityPart, _Mapping]]] = ..., quota: _Optional[str] = ..., limit: _Optional[float] = ..., rate: _Optional[float] = ..., throttle_time_ms: _Optional[int] = ...) -> None: ...

class AclBinding(_message.Message):
    __slots__ = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    resource_type: AclResourceType
    resource_name: str
    pattern_type: AclPatternType
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission
    def __init__(self, resource_type: _Optional[_Union[AclResourceType, str]] = ..., resource_name: _Optional[str] = ..., pattern_type: _Optional[_Union[AclPatternType, str]] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[_Union[AclOperation, str]] = ..., permission: _Optional[_Union[AclPermission, str]] = ...) -> None: ...

class AclBindingFilter(_message.Message):
    __slots__ = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    PATTERN_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    resource_type: AclResourceType
    resource_name: str
    pattern_type: AclPatternType
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission
    def __init__(self, resource_type: _Optional[_Union[AclResourceType, str]] = ..., resource_name: _Optional[str] = ..., pattern_type: _Optional[_Union[AclPatternType, str]] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[_Union[AclOperation, str]] = ..., permission: _Optional[_Union[AclPermission, str]] = ...) -> None: ...

class CreateAclsRequest(_message.Message):
    __slots__ = ("acls",)
    ACLS_FIELD_NUMBER: _ClassVar[int]
    acls: _containers.RepeatedCompositeFieldContainer[AclBinding]
    def __init__(self, acls: _Optional[_Iterable[_Union[AclBinding, _Mapping]]] = ...) -> None: ...

class CreateAclsResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "results")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    results: _containers.RepeatedCompositeFieldContainer[CreatedAcl]
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., results: _Optional[_Iterable[_Union[CreatedAcl, _Mapping]]] = ...) -> None: ...

class CreatedAcl(_message.Message):
    __slots__ = ("error_code", "error_message")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class DescribeAclsRequest(_message.Message):
    __slots__ = ("filter",)
    FILTER_FIELD_NUMBER: _ClassVar[int]
    filter: AclBindingFilter
    def __init__(self, filter: _Optional[_Union[AclBindingFilter, _Mapping]] = ...) -> None: ...

class DescribeAclsResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "acls")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ACLS_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    acls: _containers.RepeatedCompositeFieldContainer[AclBinding]
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., acls: _Optional[_Iterable[_Union[AclBinding, _Mapping]]] = ...) -> None: ...

class DeleteAclsRequest(_message.Message):
    __slots__ = ("filters",)
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    filters: _containers.RepeatedCompositeFieldContainer[AclBindingFilter]
    def __init__(self, filters: _Optional[_Iterable[_Union[AclBindingFilter, _Mapping]]] = ...) -> None: ...

class DeleteAclsResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "results")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    results: _containers.RepeatedCompositeFieldContainer[DeletedAcls]
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., results: _Optional[_Iterable[_Union[DeletedAcls, _Mapping]]] = ...) -> None: ...

class DeletedAcls(_message.Message):
    __slots__ = ("acls",)
    ACLS_FIELD_NUMBER: _ClassVar[int]
    acls: _containers.RepeatedCompositeFieldContainer[AclBinding]
    def __init__(self, acls: _Optional[_Iterable[_Union[AclBinding, _Mapping]]] = ...) -> None: ...

class CreateTopicsRequest(_message.Message):
    __slots__ = ("topics", "validate_only")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[NewTopic]
    validate_only: bool
    def __init__(self, topics: _Optional[_Iterable[_Union[NewTopic, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class NewTopic(_message.Message):
    __slots__ = ("name", "partitions", "configs", "replication_factor", "replica_assignment")
    class ConfigsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    configs: _containers.ScalarMap[str, str]
    replication_factor: int
    replica_assignment: _containers.RepeatedCompositeFieldContainer[ReplicaList]
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., configs: _Optional[_Mapping[str, str]] = ..., replication_factor: _Optional[int] = ..., replica_assignment: _Optional[_Iterable[_Union[ReplicaList, _Mapping]]] = ...) -> None: ...

class ReplicaList(_message.Message):
    __slots__ = ("broker_ids",)
    BROKER_IDS_FIELD_NUMBER: _ClassVar[int]
    broker_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, broker_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class CreateTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicResult]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ...) -> None: ...

class TopicResult(_message.Message):
    __slots__ = ("name", "error_code", "error_message", "topic_id", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    error_code: ErrorCode
    error_message: str
    topic_id: str
    partitions: int
    def __init__(self, name: _Optional[str] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., topic_id: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...

class DeleteTopicsRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicResult]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ...) -> None: ...

class CreatePartitionsRequest(_message.Message):
    __slots__ = ("topics", "validate_only")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[NewPartitions]
    validate_only: bool
    def __init__(self, topics: _Optional[_Iterable[_Union[NewPartitions, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class NewPartitions(_message.Message):
    __slots__ = ("name", "partitions", "replica_assignment")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    replica_assignment: _containers.RepeatedCompositeFieldContainer[ReplicaList]
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., replica_assignment: _Optional[_Iterable[_Union[ReplicaList, _Mapping]]] = ...) -> None: ...

class CreatePartitionsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicResult]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ...) -> None: ...

class DeleteRecordsRequest(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[DeleteRecordsPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[DeleteRecordsPartition, _Mapping]]] = ...) -> None: ...

class DeleteRecordsPartition(_message.Message):
    __slots__ = ("topic", "partition", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class DeleteRecordsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[DeleteRecordsPartitionResponse]
    def __init__(self, partitions: _Optional[_Iterable[_Union[DeleteRecordsPartitionResponse, _Mapping]]] = ...) -> None: ...

class DeleteRecordsPartitionResponse(_message.Message):
    __slots__ = ("topic", "partition", "error_code", "error_message", "low_watermark", "version")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error_code: ErrorCode
    error_message: str
    low_watermark: int
    version: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., low_watermark: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class MaintainLogRequest(_message.Message):
    __slots__ = ("action", "topic", "partitions")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    action: MaintenanceAction
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, action: _Optional[_Union[MaintenanceAction, str]] = ..., topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class MaintainLogResponse(_message.Message):
    __slots__ = ("partition", "error_code", "error_message", "version", "files_before", "files_after", "bytes_before", "bytes_after", "rewritten_bytes", "log_start", "dropped_versions", "deleted_files", "deleted_bytes", "is_managed")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    FILES_AFTER_FIELD_NUMBER: _ClassVar[int]
    BYTES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    BYTES_AFTER_FIELD_NUMBER: _ClassVar[int]
    REWRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    DROPPED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FILES_FIELD_NUMBER: _ClassVar[int]
    DELETED_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_MANAGED_FIELD_NUMBER: _ClassVar[int]
    partition: int
    error_code: ErrorCode
    error_message: str
    version: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rewritten_bytes: int
    log_start: int
    dropped_versions: int
    deleted_files: int
    deleted_bytes: int
    is_managed: bool
    def __init__(self, partition: _Optional[int] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., version: _Optional[int] = ..., files_before: _Optional[int] = ..., files_after: _Optional[int] = ..., bytes_before: _Optional[int] = ..., bytes_after: _Optional[int] = ..., rewritten_bytes: _Optional[int] = ..., log_start: _Optional[int] = ..., dropped_versions: _Optional[int] = ..., deleted_files: _Optional[int] = ..., deleted_bytes: _Optional[int] = ..., is_managed: _Optional[bool] = ...) -> None: ...

class SwapFilesRequest(_message.Message):
    __slots__ = ("topic", "partition", "kind", "removes", "adds")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REMOVES_FIELD_NUMBER: _ClassVar[int]
    ADDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    kind: SwapKind
    removes: _containers.RepeatedScalarFieldContainer[str]
    adds: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., kind: _Optional[_Union[SwapKind, str]] = ..., removes: _Optional[_Iterable[str]] = ..., adds: _Optional[_Iterable[str]] = ...) -> None: ...

class SwapFilesResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "version")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    version: int
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class DescribeLogDirsRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeLogDirsResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "log_dirs")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LOG_DIRS_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    log_dirs: _containers.RepeatedCompositeFieldContainer[LogDir]
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., log_dirs: _Optional[_Iterable[_Union[LogDir, _Mapping]]] = ...) -> None: ...

class LogDir(_message.Message):
    __slots__ = ("error_code", "error_message", "path", "total_bytes", "usable_bytes", "replicas")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    USABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    path: str
    total_bytes: int
    usable_bytes: int
    replicas: _containers.RepeatedCompositeFieldContainer[LogDirReplica]
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., path: _Optional[str] = ..., total_bytes: _Optional[int] = ..., usable_bytes: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[LogDirReplica, _Mapping]]] = ...) -> None: ...

class LogDirReplica(_message.Message):
    __slots__ = ("topic", "partition", "error_code", "error_message", "is_leader", "size_bytes", "file_count", "reclaimable_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IS_LEADER_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_COUNT_FIELD_NUMBER: _ClassVar[int]
    RECLAIMABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error_code: ErrorCode
    error_message: str
    is_leader: bool
    size_bytes: int
    file_count: int
    reclaimable_bytes: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., is_leader: _Optional[bool] = ..., size_bytes: _Optional[int] = ..., file_count: _Optional[int] = ..., reclaimable_bytes: _Optional[int] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("name", "topic", "schema", "columns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    schema: str
    columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ..., schema: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateViewRequest(_message.Message):
    __slots__ = ("view", "has_usual_columns", "replace", "validate_only")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    HAS_USUAL_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    view: View
    has_usual_columns: bool
    replace: bool
    validate_only: bool
    def __init__(self, view: _Optional[_Union[View, _Mapping]] = ..., has_usual_columns: _Optional[bool] = ..., replace: _Optional[bool] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class CreateViewResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "view")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    view: View
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., view: _Optional[_Union[View, _Mapping]] = ...) -> None: ...

class DeleteViewRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteViewResponse(_message.Message):
    __slots__ = ("error_code", "error_message")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class ListViewsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListViewsResponse(_message.Message):
    __slots__ = ("views",)
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    views: _containers.RepeatedCompositeFieldContainer[View]
    def __init__(self, views: _Optional[_Iterable[_Union[View, _Mapping]]] = ...) -> None: ...

class ConfigResource(_message.Message):
    __slots__ = ("type", "name")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    type: ResourceType
    name: str
    def __init__(self, type: _Optional[_Union[ResourceType, str]] = ..., name: _Optional[str] = ...) -> None: ...

class DescribeConfigsRequest(_message.Message):
    __slots__ = ("resources", "keys")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedCompositeFieldContainer[ConfigResource]
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, resources: _Optional[_Iterable[_Union[ConfigResource, _Mapping]]] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeConfigsResponse(_message.Message):
    __slots__ = ("resources",)
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedCompositeFieldContainer[ConfigsResult]
    def __init__(self, resources: _Optional[_Iterable[_Union[ConfigsResult, _Mapping]]] = ...) -> None: ...

class ConfigsResult(_message.Message):
    __slots__ = ("resource", "error_code", "error_message", "entries")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    resource: ConfigResource
    error_code: ErrorCode
    error_message: str
    entries: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    def __init__(self, resource: _Optional[_Union[ConfigResource, _Mapping]] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[ConfigEntry, _Mapping]]] = ...) -> None: ...

class ConfigEntry(_message.Message):
    __slots__ = ("name", "value", "default_value", "is_default", "type", "valid_values", "documentation", "is_read_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    VALID_VALUES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTATION_FIELD_NUMBER: _ClassVar[int]
    IS_READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    default_value: str
    is_default: bool
    type: str
    valid_values: str
    documentation: str
    is_read_only: bool
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., default_value: _Optional[str] = ..., is_default: _Optional[bool] = ..., type: _Optional[str] = ..., valid_values: _Optional[str] = ..., documentation: _Optional[str] = ..., is_read_only: _Optional[bool] = ...) -> None: ...

class AlterConfigsRequest(_message.Message):
    __slots__ = ("resources", "validate_only")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedCompositeFieldContainer[AlterConfigsResource]
    validate_only: bool
    def __init__(self, resources: _Optional[_Iterable[_Union[AlterConfigsResource, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class AlterConfigsResource(_message.Message):
    __slots__ = ("resource", "operations")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    resource: ConfigResource
    operations: _containers.RepeatedCompositeFieldContainer[AlterConfigOp]
    def __init__(self, resource: _Optional[_Union[ConfigResource, _Mapping]] = ..., operations: _Optional[_Iterable[_Union[AlterConfigOp, _Mapping]]] = ...) -> None: ...

class AlterConfigOp(_message.Message):
    __slots__ = ("name", "operation", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    operation: AlterOperation
    value: str
    def __init__(self, name: _Optional[str] = ..., operation: _Optional[_Union[AlterOperation, str]] = ..., value: _Optional[str] = ...) -> None: ...

class AlterConfigsResponse(_message.Message):
    __slots__ = ("resources",)
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    resources: _containers.RepeatedCompositeFieldContainer[ConfigsResult]
    def __init__(self, resources: _Optional[_Iterable[_Union[ConfigsResult, _Mapping]]] = ...) -> None: ...

class TxnOffsetCommitRequest(_message.Message):
    __slots__ = ("transactional_id", "group_id", "producer_id", "producer_epoch", "generation", "member_id", "group_instance_id", "partitions", "sequence")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    generation: int
    member_id: str
    group_instance_id: str
    partitions: _containers.RepeatedCompositeFieldContainer[OffsetCommitPartition]
    sequence: int
    def __init__(self, transactional_id: _Optional[str] = ..., group_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., generation: _Optional[int] = ..., member_id: _Optional[str] = ..., group_instance_id: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[OffsetCommitPartition, _Mapping]]] = ..., sequence: _Optional[int] = ...) -> None: ...

class TxnOffsetCommitResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[OffsetCommitPartitionResponse]
    def __init__(self, partitions: _Optional[_Iterable[_Union[OffsetCommitPartitionResponse, _Mapping]]] = ...) -> None: ...

class EndTxnRequest(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "is_commit", "ends")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    IS_COMMIT_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    ends: _containers.RepeatedCompositeFieldContainer[TransactionEnd]
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., is_commit: _Optional[bool] = ..., ends: _Optional[_Iterable[_Union[TransactionEnd, _Mapping]]] = ...) -> None: ...

class TransactionEnd(_message.Message):
    __slots__ = ("topic", "partition", "last_sequence")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    last_sequence: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., last_sequence: _Optional[int] = ...) -> None: ...

class EndTxnResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "producer_id", "producer_epoch", "versions")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    producer_id: int
    producer_epoch: int
    versions: _containers.RepeatedCompositeFieldContainer[TransactionVersion]
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., versions: _Optional[_Iterable[_Union[TransactionVersion, _Mapping]]] = ...) -> None: ...

class TransactionVersion(_message.Message):
    __slots__ = ("topic", "partition", "version", "base_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    version: int
    base_offset: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., version: _Optional[int] = ..., base_offset: _Optional[int] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("states", "producer_ids", "duration_ms")
    STATES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[str]
    producer_ids: _containers.RepeatedScalarFieldContainer[int]
    duration_ms: int
    def __init__(self, states: _Optional[_Iterable[str]] = ..., producer_ids: _Optional[_Iterable[int]] = ..., duration_ms: _Optional[int] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "transactions", "unknown_states")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_STATES_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    transactions: _containers.RepeatedCompositeFieldContainer[ListedTransaction]
    unknown_states: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., transactions: _Optional[_Iterable[_Union[ListedTransaction, _Mapping]]] = ..., unknown_states: _Optional[_Iterable[str]] = ...) -> None: ...

class ListedTransaction(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "state")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    state: str
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., state: _Optional[str] = ...) -> None: ...

class DescribeTransactionsRequest(_message.Message):
    __slots__ = ("transactional_ids",)
    TRANSACTIONAL_IDS_FIELD_NUMBER: _ClassVar[int]
    transactional_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, transactional_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeTransactionsResponse(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[DescribedTransaction]
    def __init__(self, transactions: _Optional[_Iterable[_Union[DescribedTransaction, _Mapping]]] = ...) -> None: ...

class DescribedTransaction(_message.Message):
    __slots__ = ("error_code", "error_message", "transactional_id", "state", "producer_id", "producer_epoch", "timeout_ms", "start_ms", "update_ms", "topics", "group_ids", "number", "coordinator", "coordinator_partition")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_PARTITION_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    update_ms: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    group_ids: _containers.RepeatedScalarFieldContainer[str]
    number: int
    coordinator: Broker
    coordinator_partition: int
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., transactional_id: _Optional[str] = ..., state: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., start_ms: _Optional[int] = ..., update_ms: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., group_ids: _Optional[_Iterable[str]] = ..., number: _Optional[int] = ..., coordinator: _Optional[_Union[Broker, _Mapping]] = ..., coordinator_partition: _Optional[int] = ...) -> None: ...

class DescribeProducersRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ...) -> None: ...

class DescribeProducersResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionProducers]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionProducers, _Mapping]]] = ...) -> None: ...

class PartitionProducers(_message.Message):
    __slots__ = ("topic", "partition", "error_code", "error_message", "producers")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    error_code: ErrorCode
    error_message: str
    producers: _containers.RepeatedCompositeFieldContainer[ActiveProducer]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., producers: _Optional[_Iterable[_Union[ActiveProducer, _Mapping]]] = ...) -> None: ...

class ActiveProducer(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "last_sequence", "last_timestamp_ms", "coordinator_partition", "staged_bytes")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_PARTITION_FIELD_NUMBER: _ClassVar[int]
    STAGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_partition: int
    staged_bytes: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., last_sequence: _Optional[int] = ..., last_timestamp_ms: _Optional[int] = ..., coordinator_partition: _Optional[int] = ..., staged_bytes: _Optional[int] = ...) -> None: ...

class AbortTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class AbortTransactionResponse(_message.Message):
    __slots__ = ("error_code", "error_message")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class FenceProducersRequest(_message.Message):
    __slots__ = ("transactional_ids",)
    TRANSACTIONAL_IDS_FIELD_NUMBER: _ClassVar[int]
    transactional_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, transactional_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class FenceProducersResponse(_message.Message):
    __slots__ = ("producers",)
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    producers: _containers.RepeatedCompositeFieldContainer[FencedProducer]
    def __init__(self, producers: _Optional[_Iterable[_Union[FencedProducer, _Mapping]]] = ...) -> None: ...

class FencedProducer(_message.Message):
    __slots__ = ("error_code", "error_message", "transactional_id", "producer_id", "producer_epoch")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class IdentifyBrokerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class IdentifyBrokerResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "cluster_id", "broker_id", "incarnation_id")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    cluster_id: str
    broker_id: int
    incarnation_id: str
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., cluster_id: _Optional[str] = ..., broker_id: _Optional[int] = ..., incarnation_id: _Optional[str] = ...) -> None: ...

class RegisterBrokerRequest(_message.Message):
    __slots__ = ("cluster_id", "broker_id", "host", "port", "rack", "incarnation_id", "min_feature_level", "max_feature_level", "listeners")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    MAX_FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    broker_id: int
    host: str
    port: int
    rack: str
    incarnation_id: str
    min_feature_level: int
    max_feature_level: int
    listeners: _containers.RepeatedCompositeFieldContainer[BrokerListener]
    def __init__(self, cluster_id: _Optional[str] = ..., broker_id: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., rack: _Optional[str] = ..., incarnation_id: _Optional[str] = ..., min_feature_level: _Optional[int] = ..., max_feature_level: _Optional[int] = ..., listeners: _Optional[_Iterable[_Union[BrokerListener, _Mapping]]] = ...) -> None: ...

class BrokerListener(_message.Message):
    __slots__ = ("name", "protocol", "host", "port")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    name: str
    protocol: str
    host: str
    port: int
    def __init__(self, name: _Optional[str] = ..., protocol: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class RegisterBrokerResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "broker_epoch", "metadata_offset")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    broker_epoch: int
    metadata_offset: int
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., broker_epoch: _Optional[int] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class BrokerHeartbeatRequest(_message.Message):
    __slots__ = ("broker_id", "broker_epoch", "incarnation_id", "metadata_offset", "want_shut_down", "max_wait_ms", "lagging", "used_producer_ids", "want_fence", "is_unanswered")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WANT_SHUT_DOWN_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    LAGGING_FIELD_NUMBER: _ClassVar[int]
    USED_PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    WANT_FENCE_FIELD_NUMBER: _ClassVar[int]
    IS_UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    incarnation_id: str
    metadata_offset: int
    want_shut_down: bool
    max_wait_ms: int
    lagging: _containers.RepeatedCompositeFieldContainer[LaggingReplicas]
    used_producer_ids: _containers.RepeatedScalarFieldContainer[int]
    want_fence: bool
    is_unanswered: bool
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., incarnation_id: _Optional[str] = ..., metadata_offset: _Optional[int] = ..., want_shut_down: _Optional[bool] = ..., max_wait_ms: _Optional[int] = ..., lagging: _Optional[_Iterable[_Union[LaggingReplicas, _Mapping]]] = ..., used_producer_ids: _Optional[_Iterable[int]] = ..., want_fence: _Optional[bool] = ..., is_unanswered: _Optional[bool] = ...) -> None: ...

class BrokerHeartbeatResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "metadata_offset", "should_shut_down", "lagging")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHOULD_SHUT_DOWN_FIELD_NUMBER: _ClassVar[int]
    LAGGING_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    metadata_offset: int
    should_shut_down: bool
    lagging: _containers.RepeatedCompositeFieldContainer[LaggingReplicas]
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., metadata_offset: _Optional[int] = ..., should_shut_down: _Optional[bool] = ..., lagging: _Optional[_Iterable[_Union[LaggingReplicas, _Mapping]]] = ...) -> None: ...

class LaggingReplicas(_message.Message):
    __slots__ = ("topic", "partition", "broker_ids")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BROKER_IDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    broker_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., broker_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class CommittedVersionsRequest(_message.Message):
    __slots__ = ("incarnation_id", "after", "max_wait_ms", "broker_id", "broker_epoch", "applied")
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    incarnation_id: str
    after: int
    max_wait_ms: int
    broker_id: int
    broker_epoch: int
    applied: _containers.RepeatedCompositeFieldContainer[CommittedVersionsOfTopic]
    def __init__(self, incarnation_id: _Optional[str] = ..., after: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., applied: _Optional[_Iterable[_Union[CommittedVersionsOfTopic, _Mapping]]] = ...) -> None: ...

class CommittedVersionsResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "incarnation_id", "end", "topics", "is_awaited")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    IS_AWAITED_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    incarnation_id: str
    end: int
    topics: _containers.RepeatedCompositeFieldContainer[CommittedVersionsOfTopic]
    is_awaited: bool
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., incarnation_id: _Optional[str] = ..., end: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[CommittedVersionsOfTopic, _Mapping]]] = ..., is_awaited: _Optional[bool] = ...) -> None: ...

class CommittedVersionsOfTopic(_message.Message):
    __slots__ = ("topic", "topic_id", "partitions", "versions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., versions: _Optional[_Iterable[int]] = ...) -> None: ...

class RaiseLeaderEpochRequest(_message.Message):
    __slots__ = ("broker_id", "broker_epoch", "topic", "partition", "above")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    topic: str
    partition: int
    above: int
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., above: _Optional[int] = ...) -> None: ...

class RaiseLeaderEpochResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "leader_epoch")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    leader_epoch: int
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class EnvelopeRequest(_message.Message):
    __slots__ = ("method", "request", "client", "listener", "principal", "client_id", "is_own")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    IS_OWN_FIELD_NUMBER: _ClassVar[int]
    method: str
    request: bytes
    client: str
    listener: str
    principal: str
    client_id: str
    is_own: bool
    def __init__(self, method: _Optional[str] = ..., request: _Optional[bytes] = ..., client: _Optional[str] = ..., listener: _Optional[str] = ..., principal: _Optional[str] = ..., client_id: _Optional[str] = ..., is_own: _Optional[bool] = ...) -> None: ...

class EnvelopeResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "response", "metadata_offset")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    response: bytes
    metadata_offset: int
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., response: _Optional[bytes] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class AddPartitionsToTxnRequest(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionAdditions]
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionAdditions, _Mapping]]] = ...) -> None: ...

class TransactionAdditions(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "partitions", "groups")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: _containers.RepeatedCompositeFieldContainer[TransactionPartition]
    groups: _containers.RepeatedCompositeFieldContainer[TransactionGroup]
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[TransactionPartition, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[TransactionGroup, _Mapping]]] = ...) -> None: ...

class TransactionPartition(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "last_sequence")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: str
    partition: int
    last_sequence: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[str] = ..., partition: _Optional[int] = ..., last_sequence: _Optional[int] = ...) -> None: ...

class TransactionGroup(_message.Message):
    __slots__ = ("group_id", "offsets_partition")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_PARTITION_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    offsets_partition: int
    def __init__(self, group_id: _Optional[str] = ..., offsets_partition: _Optional[int] = ...) -> None: ...

class AddPartitionsToTxnResponse(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionAdded]
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionAdded, _Mapping]]] = ...) -> None: ...

class TransactionAdded(_message.Message):
    __slots__ = ("error_code", "error_message", "may_be_one_phase")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MAY_BE_ONE_PHASE_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    may_be_one_phase: bool
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., may_be_one_phase: _Optional[bool] = ...) -> None: ...

class TransactionStepRequest(_message.Message):
    __slots__ = ("transactional_id", "number", "producer_id", "producer_epoch", "coordinator_partition", "partitions", "groups", "heeds_marks")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_PARTITION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    HEEDS_MARKS_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    number: int
    producer_id: int
    producer_epoch: int
    coordinator_partition: int
    partitions: _containers.RepeatedCompositeFieldContainer[TransactionPartition]
    groups: _containers.RepeatedCompositeFieldContainer[TransactionGroup]
    heeds_marks: bool
    def __init__(self, transactional_id: _Optional[str] = ..., number: _Optional[int] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., coordinator_partition: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[TransactionPartition, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[TransactionGroup, _Mapping]]] = ..., heeds_marks: _Optional[bool] = ...) -> None: ...

class TransactionStepResponse(_message.Message):
    __slots__ = ("partitions", "groups")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[TransactionStepResult]
    groups: _containers.RepeatedCompositeFieldContainer[TransactionStepResult]
    def __init__(self, partitions: _Optional[_Iterable[_Union[TransactionStepResult, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[TransactionStepResult, _Mapping]]] = ...) -> None: ...

class TransactionStepResult(_message.Message):
    __slots__ = ("error_code", "error_message", "last_sequence", "version", "base_offset", "is_pending", "number")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    IS_PENDING_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    last_sequence: int
    version: int
    base_offset: int
    is_pending: bool
    number: int
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., last_sequence: _Optional[int] = ..., version: _Optional[int] = ..., base_offset: _Optional[int] = ..., is_pending: _Optional[bool] = ..., number: _Optional[int] = ...) -> None: ...

class Traces(_message.Message):
    __slots__ = ("producer_ids", "producer_epochs", "transactional_ids")
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_IDS_FIELD_NUMBER: _ClassVar[int]
    producer_ids: _containers.RepeatedScalarFieldContainer[int]
    producer_epochs: _containers.RepeatedScalarFieldContainer[int]
    transactional_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, producer_ids: _Optional[_Iterable[int]] = ..., producer_epochs: _Optional[_Iterable[int]] = ..., transactional_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class FindNeededRequest(_message.Message):
    __slots__ = ("coordinator_partition", "traces")
    COORDINATOR_PARTITION_FIELD_NUMBER: _ClassVar[int]
    TRACES_FIELD_NUMBER: _ClassVar[int]
    coordinator_partition: int
    traces: Traces
    def __init__(self, coordinator_partition: _Optional[int] = ..., traces: _Optional[_Union[Traces, _Mapping]] = ...) -> None: ...

class FindNeededResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "traces", "ended")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACES_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    traces: Traces
    ended: Traces
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., traces: _Optional[_Union[Traces, _Mapping]] = ..., ended: _Optional[_Union[Traces, _Mapping]] = ...) -> None: ...

class DescribeUserScramCredentialsRequest(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, users: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeUserScramCredentialsResponse(_message.Message):
    __slots__ = ("users", "error_code", "error_message")
    USERS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[UserScramCredentials]
    error_code: ErrorCode
    error_message: str
    def __init__(self, users: _Optional[_Iterable[_Union[UserScramCredentials, _Mapping]]] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class UserScramCredentials(_message.Message):
    __slots__ = ("user", "credentials", "error_code", "error_message")
    USER_FIELD_NUMBER: _ClassVar[int]
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    user: str
    credentials: _containers.RepeatedCompositeFieldContainer[ScramCredentialInfo]
    error_code: ErrorCode
    error_message: str
    def __init__(self, user: _Optional[str] = ..., credentials: _Optional[_Iterable[_Union[ScramCredentialInfo, _Mapping]]] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class ScramCredentialInfo(_message.Message):
    __slots__ = ("mechanism", "iterations")
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    mechanism: str
    iterations: int
    def __init__(self, mechanism: _Optional[str] = ..., iterations: _Optional[int] = ...) -> None: ...

class AlterUserScramCredentialsRequest(_message.Message):
    __slots__ = ("upsertions", "deletions")
    UPSERTIONS_FIELD_NUMBER: _ClassVar[int]
    DELETIONS_FIELD_NUMBER: _ClassVar[int]
    upsertions: _containers.RepeatedCompositeFieldContainer[ScramUpsertion]
    deletions: _containers.RepeatedCompositeFieldContainer[ScramDeletion]
    def __init__(self, upsertions: _Optional[_Iterable[_Union[ScramUpsertion, _Mapping]]] = ..., deletions: _Optional[_Iterable[_Union[ScramDeletion, _Mapping]]] = ...) -> None: ...

class ScramUpsertion(_message.Message):
    __slots__ = ("user", "mechanism", "iterations", "salt", "salted_password")
    USER_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    SALTED_PASSWORD_FIELD_NUMBER: _ClassVar[int]
    user: str
    mechanism: str
    iterations: int
    salt: bytes
    salted_password: bytes
    def __init__(self, user: _Optional[str] = ..., mechanism: _Optional[str] = ..., iterations: _Optional[int] = ..., salt: _Optional[bytes] = ..., salted_password: _Optional[bytes] = ...) -> None: ...

class ScramDeletion(_message.Message):
    __slots__ = ("user", "mechanism")
    USER_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    user: str
    mechanism: str
    def __init__(self, user: _Optional[str] = ..., mechanism: _Optional[str] = ...) -> None: ...

class AlterUserScramCredentialsResponse(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[AlteredUser]
    def __init__(self, users: _Optional[_Iterable[_Union[AlteredUser, _Mapping]]] = ...) -> None: ...

class AlteredUser(_message.Message):
    __slots__ = ("user", "error_code", "error_message")
    USER_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    user: str
    error_code: ErrorCode
    error_message: str
    def __init__(self, user: _Optional[str] = ..., error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class AppendAuditRequest(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: bytes
    def __init__(self, rows: _Optional[bytes] = ...) -> None: ...

class AppendAuditResponse(_message.Message):
    __slots__ = ("error_code", "error_message")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ...) -> None: ...

class SaslAuthenticateRequest(_message.Message):
    __slots__ = ("mechanism", "auth_bytes")
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    AUTH_BYTES_FIELD_NUMBER: _ClassVar[int]
    mechanism: str
    auth_bytes: bytes
    def __init__(self, mechanism: _Optional[str] = ..., auth_bytes: _Optional[bytes] = ...) -> None: ...

class SaslAuthenticateResponse(_message.Message):
    __slots__ = ("error_code", "error_message", "auth_bytes", "session_token", "session_lifetime_ms", "mechanisms")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    AUTH_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SESSION_LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    MECHANISMS_FIELD_NUMBER: _ClassVar[int]
    error_code: ErrorCode
    error_message: str
    auth_bytes: bytes
    session_token: str
    session_lifetime_ms: int
    mechanisms: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, error_code: _Optional[_Union[ErrorCode, str]] = ..., error_message: _Optional[str] = ..., auth_bytes: _Optional[bytes] = ..., session_token: _Optional[str] = ..., session_lifetime_ms: _Optional[int] = ..., mechanisms: _Optional[_Iterable[str]] = ...) -> None: ...
