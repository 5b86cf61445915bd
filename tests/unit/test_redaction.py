"""What people read of a URL: never its password, whether it is a setting, an error or a log line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import RedisSettings
from holdfast.redaction import redact, redact_url
from holdfast.telemetry.logs import get_logger

SECRET = "hunter2"

passwords = st.text(
    alphabet=st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"]), max_size=8
).map(lambda text: f"Q{text}Q")


@given(user=st.text(alphabet="abc", max_size=3), password=passwords)
def test_no_password_survives_redaction(user, password):
    assert redact_url(f"redis://{user}:{password}@host/0") == f"redis://{user}:***@host/0"
    assert redact(f"no redis://{user}:{password}@host/0") == "no redis://***@host/0"


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@host:6379/0",
        f"redis://user:pass word {SECRET}@host",
        f"redis://:1@ {SECRET}/1@host",
        f"https://{SECRET}@host",
        f"https://{SECRET}:@host",
        *(
            f"https://host/path?a=1&{name}={SECRET}&b=2"
            for name in (
                *("password", "passwd", "pwd", "sentinel_password", "secret", "client_secret"),
                *("token", "access_token", "X-Amz-Security-Token", "api_key", "apikey", "Api-Key", "key"),
                *("AWSAccessKey", "signature", "X-Amz-Signature", "sig", "X-Amz-Credential"),
            )
        ),
        f"host=db user=u password={SECRET}",
        f"host=db password='two {SECRET}' user=u",
    ],
)
def test_settings_errors_and_logs_hide_the_same_secrets(url, log_lines):
    """A token was shown by the settings and hidden in the logs, a password the other way round."""
    get_logger("x").error("unavailable", url=url, error=f"can't reach {url}: refused")
    shown = [repr(log_lines()), repr(RedisSettings(url=url)), redact_url(url), redact(f"at {url}, twice")]
    assert not [text for text in shown if SECRET in text]


@pytest.mark.parametrize(
    "text",
    [
        "redis://host:6379/0 refused, write to me@example.com",
        "http://host:80, then a:b@c",
        "tokens=5, max_tokens=7, monkey=1",
        "https://host/path?page=2&sort=asc",
        "a@b",
    ],
)
def test_text_without_a_secret_stays(text):
    assert redact(text) == text


def test_each_url_of_a_text_is_redacted_by_itself():
    text = "redis://:a@h1 and https://u:b@h2/x?token=c&y=1"
    assert redact(text) == "redis://***@h1 and https://***@h2/x?token=***&y=1"
