"""The server socket of the test proxies: refusing and resetting hits every connection, however young it is."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from tests.support.listener import Listener


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)


@pytest.fixture
async def listener():
    listener = Listener(echo)
    listener.listen()
    yield listener
    await listener.close()


def connected(listener: Listener) -> socket.socket:
    """A connection that the kernel has accepted, and the listener has not heard of."""
    return socket.create_connection(("127.0.0.1", listener.port), timeout=30)


async def test_what_is_accepted_is_served(listener):
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"hello")
    assert await reader.read(100) == b"hello"
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_of_any_age_is_reset_and_nothing_is_left_behind(listener, turns):
    """Fails with ``asyncio.start_server`` in some turn: the collector finds an unclosed transport, or it lives on."""
    with connected(listener) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        listener.refuse()
        await listener.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    gc.collect()


async def test_the_port_is_kept_while_connections_are_refused(listener):
    port = listener.port
    listener.refuse()
    with pytest.raises(ConnectionRefusedError):
        connected(listener)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    listener.listen()
    connected(listener).close()
    assert listener.port == port
