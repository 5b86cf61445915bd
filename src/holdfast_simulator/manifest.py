"""YAML that people wrote: an error names its file and line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import yaml
from yaml.nodes import MappingNode, Node, SequenceNode

from holdfast.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

_AT = re.compile(r" - at `\$([^`]*)`$")
_FIELD = re.compile(r"field `([^`]+)`")
_PART = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d+|\.\.\.)\]")


class Document:
    """One document of a file, and where everything in it stands."""

    def __init__(self, path: Path, node: Node, value: Any) -> None:
        self.path, self.value = path, value
        self._node = node

    def convert(self, value: Any, kind: type[T], *, base: str = "") -> T:
        """Make a struct of a value, or say on which line it goes wrong; ``base`` is where the value was."""
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as exc:
            at = _AT.search(str(exc))
            inside = base + (at[1] if at else "")
            message = _AT.sub("", str(exc))
            unknown = _FIELD.search(message) if "unknown" in message else None
            raise self.wrong(message, f"{inside}.{unknown[1]}" if unknown else inside) from exc

    def wrong(self, message: str, inside: str = "") -> InputError:
        """An error at a place in the document, like ``.spec.triggers[0]``."""
        place = f" ({inside.lstrip('.')})" if inside else ""
        return InputError(f"{self.path}:{self._line(inside)}: {message}{place}")

    def _line(self, inside: str) -> int:
        node, line = self._node, self._node.start_mark.line
        for name, index in _PART.findall(inside):
            if isinstance(node, MappingNode):
                found = [(key, value) for key, value in node.value if key.value == name]
                if not found:
                    break
                key, node = cast("tuple[Node, Node]", found[0])
                line = key.start_mark.line
            elif isinstance(node, SequenceNode) and index.isdigit() and int(index) < len(node.value):
                node = cast("Node", node.value[int(index)])
                line = node.start_mark.line
            else:
                break
        return line + 1


def read_documents(path: Path) -> list[Document]:
    """Read a file with one or more YAML documents."""
    try:
        text = path.read_text(encoding="utf-8")
        loader = yaml.SafeLoader(text)
        nodes: list[Node] = []
        while loader.check_node():
            nodes.append(cast("Node", loader.get_node()))
        return [Document(path, node, _value(node)) for node in nodes]
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text: a policy is YAML") from None
    except OSError as exc:
        raise InputError(f"{path} can't be read: {exc.strerror}") from exc
    except RecursionError:
        raise InputError(f"{path} is nested too deeply to be a policy") from None
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark is not None else 1
        raise InputError(f"{path}:{line}: this is not YAML: {exc.problem or 'it can not be parsed'}") from exc
    except (yaml.YAMLError, ValueError) as exc:
        raise InputError(f"{path} is not YAML: {exc}") from exc


def _value(node: Node) -> Any:
    return cast("Any", yaml.SafeLoader("").construct_document(node))  # pyright: ignore[reportUnknownMemberType]
