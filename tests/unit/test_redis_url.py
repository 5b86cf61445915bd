"""redis.url: what it may say, and what is said about a wrong one."""

from __future__ import annotations

import pytest

from holdfast.errors import ConfigError
from holdfast.redis.client import ServerAddress, parse


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://localhost", ServerAddress("server", nodes=(("localhost", 6379),))),
        ("redis://localhost:7000/3", ServerAddress("server", nodes=(("localhost", 7000),), db=3)),
        ("redis://localhost:7000?db=3", ServerAddress("server", nodes=(("localhost", 7000),), db=3)),
        ("redis://[::1]:7000/", ServerAddress("server", nodes=(("::1", 7000),))),
        ("rediss://r.example", ServerAddress("server", tls=True, nodes=(("r.example", 6379),))),
        ("redis://:p%40ss@h", ServerAddress("server", nodes=(("h", 6379),), password="p@ss")),
        ("redis://me:pass@h", ServerAddress("server", nodes=(("h", 6379),), username="me", password="pass")),
        ("unix:///run/redis.sock", ServerAddress("unix", path="/run/redis.sock")),
        ("unix:///run/my%20redis.sock?db=2", ServerAddress("unix", path="/run/my redis.sock", db=2)),
        ("unix://me:pw@/r.sock", ServerAddress("unix", path="/r.sock", username="me", password="pw")),
        (
            "redis+sentinel://:pw@a:1,b/main/2",
            ServerAddress("sentinel", nodes=(("a", 1), ("b", 26379)), service="main", db=2, password="pw"),
        ),
        (
            "rediss+sentinel://a/main?sentinel_password=x&sentinel_username=y",
            ServerAddress(
                "sentinel",
                tls=True,
                nodes=(("a", 26379),),
                service="main",
                sentinel_username="y",
                sentinel_password="x",
            ),
        ),
        ("redis+cluster://a:1,b:2", ServerAddress("cluster", nodes=(("a", 1), ("b", 2)))),
        ("rediss+cluster://a/0", ServerAddress("cluster", tls=True, nodes=(("a", 6379),))),
    ],
)
def test_a_url_says_where_redis_is(url: str, address: ServerAddress):
    assert parse(url) == address


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", r"no Redis is configured: set redis\.url \(REDIS_URL\)"),
        ("http://:hunter2@localhost", "scheme 'http'"),
        ("localhost:6379", "scheme 'localhost'"),
        ("redis://", "host:port belongs"),
        ("redis://:hunter2@h:port", "'h:port' where host:port belongs"),
        ("redis://h:70000", "host:port belongs"),
        ("redis://a,b", "several servers.*redis\\+cluster"),
        ("redis://h/first", "'first' where the number of a database belongs"),
        ("redis://h/-1", "'-1' where the number"),
        ("unix://", "without the path"),
        ("redis+sentinel://a:1", "names no service"),
        ("redis+cluster://a:1/2", "a cluster has only 0"),
        ("redis://h?socket_timeout=1", "'socket_timeout'.*redis.socket_timeout_seconds"),
        ("rediss://h?ssl_cert_reqs=none", "redis.tls_verify"),
        ("redis://:hunter2@h?retry_on_timeout=true", "'retry_on_timeout', which is not supported"),
    ],
)
def test_a_wrong_url_is_explained_without_its_password(url: str, message: str):
    with pytest.raises(ConfigError, match=message) as wrong:
        parse(url)
    assert "hunter2" not in str(wrong.value)
