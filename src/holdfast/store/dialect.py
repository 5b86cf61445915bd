"""The SQL in which the two databases differ, and the rendering of statements for each."""

from __future__ import annotations

import re

import msgspec

_PLACEHOLDER = re.compile(r"(?<![:\w]):(\w+)")


class Dialect(msgspec.Struct, frozen=True):
    """The replacements of the ``{words}`` of a statement, and the format of its ``:values``."""

    words: dict[str, str]
    placeholder: str
    _rendered: dict[str, str] = msgspec.field(default_factory=dict[str, str])

    def render(self, sql: str) -> str:
        """Return a statement in this dialect."""
        if (rendered := self._rendered.get(sql)) is None:
            worded = sql
            for word, meaning in self.words.items():
                worded = worded.replace(f"{{{word}}}", meaning)
            rendered = _PLACEHOLDER.sub(self.placeholder, worded)
            self._rendered[sql] = rendered
        return rendered


SQLITE = Dialect(
    {
        "blob": "BLOB",
        "share": "",  # there is one writer at a time
        "update": "",
        "next_seq": "(SELECT coalesce(max(seq), 0) + 1 FROM holdfast_state WHERE scope = :scope)",
        "keys": "SELECT value FROM json_each(:keys)",
        "bytes": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
    },
    r":\1",
)

POSTGRESQL = Dialect(
    {
        "blob": "bytea",
        # An owner that takes the run over waits for this row: a write is either visible to it or refused.
        "share": "FOR SHARE",
        "update": "FOR UPDATE",
        "next_seq": "nextval('holdfast_state_order')",
        "keys": "SELECT jsonb_array_elements_text(CAST(:keys AS jsonb))",
        "bytes": "SELECT sum(pg_total_relation_size(name::regclass))::bigint FROM unnest(ARRAY["
        "'holdfast_fences', 'holdfast_steps', 'holdfast_state', 'holdfast_archive', "
        "'holdfast_checkpoints', 'holdfast_checkpoint_writes', 'holdfast_schedules']) AS name",
    },
    r"%(\1)s",
)
