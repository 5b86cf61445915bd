from __future__ import annotations

from holdfast.config import load, setting_rows, settings_table
from holdfast.config.schema import leaves


def test_there_is_a_row_for_every_setting():
    assert [row.path for row in setting_rows()] == [leaf.path for leaf in leaves()]


def test_a_row_says_all_there_is_to_know():
    row = next(row for row in setting_rows() if row.path == "lease.ttl_seconds")
    assert row.env == ("HOLDFAST_LEASE_TTL_SECONDS", "RETRY_IDLE_MS")
    assert (row.type, row.default) == ("duration", "30")
    assert row.allowed.startswith("a duration from 1s to 1d")
    assert row.description == "How long a lease lasts without a renewal; then its work is reclaimed."


def test_the_page_has_a_line_for_every_setting_with_all_its_names():
    lines = settings_table().splitlines()
    for row in setting_rows():
        line = next(line for line in lines if line.startswith(f"| `{row.path}` |"))
        assert all(f"`{name}`" in line for name in row.env)
        assert line.count(" | ") == 5


def test_the_example_on_the_page_is_accepted(tmp_path):
    example = settings_table().split("```yaml\n")[1].split("```")[0]
    path = tmp_path / "holdfast.yaml"
    path.write_text(example)
    settings = load(path, {}).settings
    assert [queue.name for queue in settings.worker_queues()] == ["agent-queue", "media"]
    assert settings.queue_named("media").slots == 16
    assert settings.queue.timeout_seconds == 1800
