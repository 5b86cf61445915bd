"""Where the API of ``holdfast dev`` is: a port that is kept, and an address that can be called."""

from __future__ import annotations

import json
import shlex
import socket

import pytest

from holdfast.config import ApiSettings
from holdfast.errors import ConfigError
from holdfast.services.dev.address import ApiAddress, curl_line, opened, submit_line


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("localhost", "http://localhost:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::1", "http://[::1]:80"),
        ("::", "http://[::1]:80"),
    ],
)
def test_the_url_is_one_that_can_be_called(host: str, url: str):
    assert ApiAddress(host, 80).url == url


def test_an_api_with_keys_is_called_with_one():
    line = curl_line(ApiAddress("127.0.0.1", 80), "greet", {"id": 7}, keyed=True)
    assert "-H 'Authorization: Bearer KEY'" in line
    assert '"input": {"id": 7}' in line
    assert "Bearer" not in curl_line(ApiAddress("127.0.0.1", 80), "greet", None, keyed=False)


def test_the_shown_commands_are_words_of_a_shell():
    told = {"text": "it's"}
    curl = shlex.split(curl_line(ApiAddress("127.0.0.1", 80), "greet", told, keyed=False))
    assert json.loads(curl[-1]) == {"agent_id": "greet", "input": told}
    assert json.loads(shlex.split(submit_line("greet", told))[3]) == told
    assert submit_line("wave", None) == "holdfast submit wave --follow"


def test_callers_wait_while_no_child_accepts_and_are_refused_once_the_port_is_closed():
    with (
        opened(ApiSettings(port=0)) as address,
        socket.create_connection(("127.0.0.1", address.port)) as caller,
    ):
        accepted, where = address.listener.accept()
        with accepted:
            assert where == caller.getsockname()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", address.port))


def test_a_taken_port_gives_another_and_says_why():
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        opened(ApiSettings(port=other.getsockname()[1])) as address,
    ):
        assert address.port != other.getsockname()[1]
        assert address.refused == "Address already in use"


def test_a_taken_port_that_was_asked_for_is_an_error_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {taken} can't be opened .*--port"):
            opened(ApiSettings(port=taken), asked=True).__enter__()


def test_a_host_that_is_nobodys_is_an_error_that_names_the_setting():
    with (
        pytest.raises(ConfigError, match=r"api\.host"),
        opened(ApiSettings(host="198.51.100.7", open=True)),
    ):
        pass
