"""The settings while they are resolved: given values, parsed values and problems.

An invalid value is reported once and replaced by its default, so that the rest can still be checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from holdfast.config.checks import Place, contradictions
from holdfast.config.parse import Given, Invalid, read, show_given
from holdfast.config.patterns import NAME_ALLOWED
from holdfast.config.problems import invalid_value
from holdfast.config.processes import QueueName
from holdfast.config.queues import ONLY_AGENT, QueueSettings
from holdfast.config.redact import shown
from holdfast.config.scaling import lowering
from holdfast.config.schema import Leaf, leaf_at, leaves, queue_leaves
from holdfast.config.section import Section, fields_of
from holdfast.config.tree import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DEFAULT: Final = "default"
_MEDIA_STREAM: Final = "environment CLUSTER_STREAM_KEY"
_IDLE_THRESHOLD: Final = "janitor.idle_threshold_seconds"
_LOWERING: Final = "janitor.deletion_cost_lower_seconds"
_LOOK: Final = "janitor.deletion_cost_seconds"
_HEARTBEAT: Final = "worker.heartbeat_seconds"
_IDLE_MARGIN_SECONDS: Final = 300
# The names of keys: a second queue that inherited them would share the keys of the first.
_OWN_TO_A_QUEUE: Final = frozenset({"group", "deadletter"})

AnySection = TypeVar("AnySection", bound=Section)


class SettingsDocument(msgspec.Struct):
    """The content of a file: settings by path, settings of each queue, and problems."""

    name: str = ""
    given: dict[str, Given] = msgspec.field(default_factory=dict[str, Given])
    queues: dict[str, dict[str, Given]] = msgspec.field(default_factory=dict[str, dict[str, Given]])
    queue_sources: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    problems: list[str] = msgspec.field(default_factory=list[str])


class Draft(msgspec.Struct):
    """The given values of file and environment, resolved to one tree."""

    document: SettingsDocument
    environment: dict[str, list[Given]]
    values: dict[str, object] = msgspec.field(default_factory=dict[str, object])
    sources: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    problems: list[str] = msgspec.field(default_factory=list[str])
    wrong: set[str] = msgspec.field(default_factory=set[str])

    def settings(self) -> Settings:
        """Resolve every leaf and every queue, and build the tree."""
        for leaf in leaves():
            self._settle(leaf)
        self._derive_media_stream()
        default_queue = str(self.values["messaging.queue"])
        described = dict.fromkeys((default_queue, *self.document.queues))
        queues = {name: self._queue(name, default=name == default_queue) for name in described}
        template = _build(QueueSettings, "", self._inherited(default=True), name=default_queue)
        self._derive_idle_threshold((template, *queues.values()))
        self._derive_lowering(queues.values())
        return _build(Settings, "", self.values, queue=template, queues=queues)

    def contradictions(self, settings: Settings) -> None:
        """Add the contradictions of the tree to the problems."""
        for found in contradictions(settings, self._place, self._place_in_queue):
            # An invalid value is already reported: here it would be reported again, with its default.
            if self.wrong.isdisjoint(found.paths):
                self.problems.append(found.sentence)

    def _settle(self, leaf: Leaf) -> None:
        from_environment = self.environment.get(leaf.path, [])
        from_file = self.document.given.get(leaf.path)
        given = [*from_environment, *([from_file] if from_file else [])]
        self.values[leaf.path], self.sources[leaf.path] = leaf.default, _DEFAULT
        # Overridden values are checked too: the file must be valid when the variable is removed.
        values = [self._read(leaf.path, leaf, one) for one in given]
        if given and leaf.path not in self.wrong:
            self.values[leaf.path], self.sources[leaf.path] = values[0], given[0].source
            self._agree(leaf, from_environment, values)

    def _agree(self, leaf: Leaf, given: list[Given], values: list[object]) -> None:
        if any(value != values[0] for value in values[: len(given)]):
            values_text = " and ".join(f"{show_given(leaf, one)} ({one.source})" for one in given)
            problem = f"{leaf.path} is set to different values: {values_text}. Keep one of the variables"
            self._reject(leaf.path, problem)

    def _read(self, path: str, leaf: Leaf, given: Given) -> object:
        try:
            return read(leaf, given)
        except Invalid as wrong:
            self._reject(path, invalid_value(path, leaf, given, allowed=str(wrong)))
            return leaf.default

    def _reject(self, path: str, problem: str) -> None:
        self.wrong.add(path)
        self.problems.append(problem)

    def _inherited(self, *, default: bool) -> dict[str, object]:
        parts = (part for part in queue_leaves() if default or part not in _OWN_TO_A_QUEUE)
        return {part: self.values[f"queue.{part}"] for part in parts}

    def _queue(self, name: str, *, default: bool) -> QueueSettings:
        self._check_name(name)
        values = self._inherited(default=default)
        for part, given in self.document.queues.get(name, {}).items():
            path, general = f"queues.{name}.{part}", f"queue.{part}"
            value = self._read(path, leaf_at(general), given)
            if default and general in self.environment:
                # Environment beats file: the variables are those of the default queue.
                self.sources[path] = self.sources[general]
            else:
                values[part], self.sources[path] = value, given.source
        return _build(QueueSettings, "", values, name=name)

    def _check_name(self, name: str) -> None:
        source = self.document.queue_sources.get(name, _DEFAULT)
        try:
            msgspec.convert(name, QueueName)
        except msgspec.ValidationError:
            problem = f"queues.{shown(name)} ({source}) is not allowed: a queue must have {NAME_ALLOWED}"
            self._reject(f"queues.{name}", problem)

    def _derive_media_stream(self) -> None:
        """Set the defaults of a media stream, whose messages name no agent: agent and dead letters."""
        if self.sources["messaging.queue"] != _MEDIA_STREAM:
            return
        if self.sources["queue.default_agent"] == _DEFAULT:
            self.values["queue.default_agent"] = ONLY_AGENT
        # In a cluster that name would be in another slot than the stream, and one script needs both.
        if self.sources["queue.deadletter"] == _DEFAULT and "+cluster:" not in str(self.values["redis.url"]):
            self.values["queue.deadletter"] = f"{self.values['messaging.queue']}.deadletter"

    def _derive_idle_threshold(self, queues: Iterable[QueueSettings]) -> None:
        if self.sources[_IDLE_THRESHOLD] == _DEFAULT:
            longest = max(queue.timeout_seconds for queue in queues)
            self.values[_IDLE_THRESHOLD] = longest + _IDLE_MARGIN_SECONDS

    def _derive_lowering(self, queues: Iterable[QueueSettings]) -> None:
        if self.sources[_LOWERING] == _DEFAULT:
            late = sum(cast("float", self.values[path]) for path in (_HEARTBEAT, _LOOK))
            scaled = [queue.scaling.down_seconds for queue in queues if queue.scaling.enabled]
            if scaled:
                self.values[_LOWERING] = lowering(min(scaled), late)

    def _place(self, path: str) -> Place:
        return Place(path, f"{path} = {leaf_at(path).show(self.values[path])} ({self.sources[path]})")

    def _place_in_queue(self, name: str, part: str) -> Place:
        path = f"queues.{name}.{part}"
        given = self.document.queues.get(name, {}).get(part)
        if given is None or self.sources.get(path) != given.source:
            return self._place(f"queue.{part}")
        return Place(path, f"{path} = {show_given(leaf_at(f'queue.{part}'), given)} ({given.source})")


def _build(
    section: type[AnySection], prefix: str, values: Mapping[str, object], **fixed: object
) -> AnySection:
    made: dict[str, Any] = dict(fixed)
    for part in fields_of(section):
        path = prefix + part.encode_name
        if part.name in fixed:
            continue
        if path in values:
            made[part.name] = values[path]
        elif isinstance(part.type, type) and issubclass(part.type, Section):
            made[part.name] = _build(part.type, f"{path}.", values)
    return section(**made)
