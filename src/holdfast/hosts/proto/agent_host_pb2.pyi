from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateAgentRequest(_message.Message):
    __slots__ = ("agent_spec", "guild_spec", "messaging_config", "machine_id", "client_type", "client_properties", "organization_id", "guild_id", "entry", "request_id", "fence", "agent_id", "needs")
    AGENT_SPEC_FIELD_NUMBER: _ClassVar[int]
    GUILD_SPEC_FIELD_NUMBER: _ClassVar[int]
    MESSAGING_CONFIG_FIELD_NUMBER: _ClassVar[int]
    MACHINE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    ORGANIZATION_ID_FIELD_NUMBER: _ClassVar[int]
    GUILD_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    agent_spec: bytes
    guild_spec: bytes
    messaging_config: bytes
    machine_id: int
    client_type: str
    client_properties: bytes
    organization_id: str
    guild_id: str
    entry: str
    request_id: str
    fence: int
    agent_id: str
    needs: bytes
    def __init__(self, agent_spec: _Optional[bytes] = ..., guild_spec: _Optional[bytes] = ..., messaging_config: _Optional[bytes] = ..., machine_id: _Optional[int] = ..., client_type: _Optional[str] = ..., client_properties: _Optional[bytes] = ..., organization_id: _Optional[str] = ..., guild_id: _Optional[str] = ..., entry: _Optional[str] = ..., request_id: _Optional[str] = ..., fence: _Optional[int] = ..., agent_id: _Optional[str] = ..., needs: _Optional[bytes] = ...) -> None: ...

class CreateAgentResponse(_message.Message):
    __slots__ = ("agent_id", "pid", "success", "error", "fence", "address")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    pid: int
    success: bool
    error: str
    fence: int
    address: str
    def __init__(self, agent_id: _Optional[str] = ..., pid: _Optional[int] = ..., success: _Optional[bool] = ..., error: _Optional[str] = ..., fence: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class StopAgentRequest(_message.Message):
    __slots__ = ("agent_id", "timeout", "organization_id", "guild_id", "moving")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ORGANIZATION_ID_FIELD_NUMBER: _ClassVar[int]
    GUILD_ID_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    timeout: int
    organization_id: str
    guild_id: str
    moving: bool
    def __init__(self, agent_id: _Optional[str] = ..., timeout: _Optional[int] = ..., organization_id: _Optional[str] = ..., guild_id: _Optional[str] = ..., moving: _Optional[bool] = ...) -> None: ...

class StopAgentResponse(_message.Message):
    __slots__ = ("success", "error")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    success: bool
    error: str
    def __init__(self, success: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class GetAgentInfoRequest(_message.Message):
    __slots__ = ("agent_id", "organization_id", "guild_id")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    ORGANIZATION_ID_FIELD_NUMBER: _ClassVar[int]
    GUILD_ID_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    organization_id: str
    guild_id: str
    def __init__(self, agent_id: _Optional[str] = ..., organization_id: _Optional[str] = ..., guild_id: _Optional[str] = ...) -> None: ...

class AgentInfo(_message.Message):
    __slots__ = ("agent_id", "guild_id", "agent_name", "pid", "is_alive", "created_at", "organization_id", "agent_spec", "status", "fence", "restarts", "error", "memory_bytes", "cpu_seconds")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    GUILD_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_NAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    IS_ALIVE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ORGANIZATION_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_SPEC_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    guild_id: str
    agent_name: str
    pid: int
    is_alive: bool
    created_at: int
    organization_id: str
    agent_spec: bytes
    status: str
    fence: int
    restarts: int
    error: str
    memory_bytes: int
    cpu_seconds: float
    def __init__(self, agent_id: _Optional[str] = ..., guild_id: _Optional[str] = ..., agent_name: _Optional[str] = ..., pid: _Optional[int] = ..., is_alive: _Optional[bool] = ..., created_at: _Optional[int] = ..., organization_id: _Optional[str] = ..., agent_spec: _Optional[bytes] = ..., status: _Optional[str] = ..., fence: _Optional[int] = ..., restarts: _Optional[int] = ..., error: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., cpu_seconds: _Optional[float] = ...) -> None: ...

class ListAgentsRequest(_message.Message):
    __slots__ = ("guild_id", "organization_id")
    GUILD_ID_FIELD_NUMBER: _ClassVar[int]
    ORGANIZATION_ID_FIELD_NUMBER: _ClassVar[int]
    guild_id: str
    organization_id: str
    def __init__(self, guild_id: _Optional[str] = ..., organization_id: _Optional[str] = ...) -> None: ...

class ListAgentsResponse(_message.Message):
    __slots__ = ("agents",)
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    agents: _containers.RepeatedCompositeFieldContainer[AgentInfo]
    def __init__(self, agents: _Optional[_Iterable[_Union[AgentInfo, _Mapping]]] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthResponse(_message.Message):
    __slots__ = ("healthy", "agent_count", "hostname", "max_processes", "draining", "address")
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    AGENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    MAX_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    healthy: bool
    agent_count: int
    hostname: str
    max_processes: int
    draining: bool
    address: str
    def __init__(self, healthy: _Optional[bool] = ..., agent_count: _Optional[int] = ..., hostname: _Optional[str] = ..., max_processes: _Optional[int] = ..., draining: _Optional[bool] = ..., address: _Optional[str] = ...) -> None: ...
