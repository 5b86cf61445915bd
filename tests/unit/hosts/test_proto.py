"""The generated code is that of the proto file, and the proto file has all that the users' document prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.hosts.proto import agent_host_pb2

SRC = Path(__file__).parents[3] / "src"
PROTO = "holdfast/hosts/proto/agent_host.proto"


def test_the_generated_code_is_current(tmp_path: Path):
    outs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{SRC}", *outs, PROTO], check=True, cwd=SRC)
    for fresh in (tmp_path / PROTO).parent.iterdir():
        assert fresh.read_text() == (SRC / PROTO).with_name(fresh.name).read_text(), "run `make proto`"


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (
            "CreateAgentRequest",
            "agent_spec guild_spec messaging_config machine_id client_type client_properties",
        ),
        ("CreateAgentResponse", "agent_id pid success error"),
        ("StopAgentRequest", "agent_id timeout"),
        ("StopAgentResponse", "success error"),
        ("GetAgentInfoRequest", "agent_id"),
        ("AgentInfo", "agent_id guild_id agent_name pid is_alive created_at"),
        ("ListAgentsRequest", "guild_id"),
        ("ListAgentsResponse", "agents"),
        ("HealthResponse", "healthy agent_count hostname"),
    ],
)
def test_the_documents_fields_keep_their_numbers(message, fields):
    described = agent_host_pb2.DESCRIPTOR.message_types_by_name[message]
    first = [field.name for field in described.fields if field.number <= len(fields.split())]
    assert first == fields.split()
