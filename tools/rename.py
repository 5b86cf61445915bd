"""Rename classes, functions, methods, parameters and attributes wherever they are used, by the language server.

``python -m tools.rename MODULE:NAME[.NAME] NEW [MODULE:NAME NEW ...]``: ``holdfast.services.desk:Desk PartitionWorker``.
Names in strings, comments and documents are no symbols: a class's compound name is replaced there too when nothing else has it;
every other mention is listed.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from tools.move import ROOT, path_of, tracked

CONFIG = ROOT / "pyrightconfig.json"
"""For the time of a renaming: the tests, examples and benchmarks use the names as well."""
_COMPOUND = re.compile(r"[A-Z][a-z0-9]+[A-Z]")
FOLDERS = ["src", "tests", "bench", "examples", "deploy", "tools"]


class LanguageServer:
    """basedpyright, asked over its standard input and output."""

    def __init__(self) -> None:
        command = [str(Path(sys.executable).with_name("basedpyright-langserver")), "--stdio"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        self._numbers = itertools.count(1)
        self.ask(
            "initialize",
            {
                "processId": None,
                "rootUri": ROOT.as_uri(),
                "workspaceFolders": [{"uri": ROOT.as_uri(), "name": "holdfast"}],
                "capabilities": {"workspace": {"workspaceEdit": {"documentChanges": False}}},
            },
        )
        self.notify("initialized", {})
        self.wait_for_log("source files")  # before that it knows no other file than the one that is open

    def notify(self, method: str, params: Any) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, params: Any) -> Any:
        number = next(self._numbers)
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        while True:
            message = self._answered()
            if message.get("id") == number and "method" not in message:
                if "error" in message:
                    sys.exit(f"{method}: {message['error']['message']}")
                return message.get("result")

    def wait_for_log(self, words: str) -> None:
        """Read until the server logs a line with these words."""
        while words not in str((self._answered().get("params") or {}).get("message", "")):
            pass

    def _answered(self) -> dict[str, Any]:
        """Receive a message; a question of the server's own is answered with its defaults."""
        message = self._receive()
        if "id" in message and "method" in message:
            result: Any = None
            if message["method"] == "workspace/configuration":
                result = [{"analysis": {"diagnosticMode": "workspace"}} for _ in message["params"]["items"]]
            self._send({"jsonrpc": "2.0", "id": message["id"], "result": result})
        return message

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _send(self, message: Any) -> None:
        body = json.dumps(message).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while line := self._process.stdout.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return json.loads(self._process.stdout.read(length))


def position(path: Path, dotted: str) -> tuple[int, int]:
    """Where a name is defined: line and column, from 0."""
    node: Any = ast.parse(path.read_text())
    lines = path.read_text().splitlines()
    for name in dotted.split("."):
        node = next((each for each in ast.walk(node) if _defines(each, name)), None)
        if node is None:
            sys.exit(f"{path.relative_to(ROOT)} does not define {dotted}")
    line = node.lineno - 1
    column = next(m.start() for m in re.finditer(rf"\b{name}\b", lines[line]) if m.start() >= node.col_offset)
    return line, column


def _defines(node: Any, name: str) -> bool:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name == name
        case ast.arg():
            return node.arg == name
        case ast.Name(ctx=ast.Store()):
            return node.id == name
        case ast.Attribute(ctx=ast.Store()):
            return node.attr == name
    return False


def apply(changes: dict[str, list[dict[str, Any]]]) -> int:
    """Write the edits, the last of a file first; return how many there were."""
    for uri, edits in changes.items():
        path = Path(unquote(urlparse(uri).path))
        lines = path.read_text().splitlines(keepends=True)
        for edit in sorted(
            edits, key=lambda e: (e["range"]["start"]["line"], e["range"]["start"]["character"]), reverse=True
        ):
            start, end = edit["range"]["start"], edit["range"]["end"]
            assert start["line"] == end["line"], "a name is on one line"
            line = lines[start["line"]]
            lines[start["line"]] = line[: start["character"]] + edit["newText"] + line[end["character"] :]
        path.write_text("".join(lines))
    return sum(map(len, changes.values()))


def rename(server: LanguageServer, where: str, new: str) -> None:
    module, _, dotted = where.partition(":")
    path = path_of(module)
    path = path / "__init__.py" if path.is_dir() else path
    line, column = position(path, dotted)
    server.notify(
        "textDocument/didOpen",
        {
            "textDocument": {
                "uri": path.as_uri(),
                "languageId": "python",
                "version": 1,
                "text": path.read_text(),
            }
        },
    )
    place = {"textDocument": {"uri": path.as_uri()}, "position": {"line": line, "character": column}}
    answer = server.ask("textDocument/rename", {**place, "newName": new})
    server.notify("textDocument/didClose", {"textDocument": {"uri": path.as_uri()}})
    if not answer:
        sys.exit(f"the language server renames nothing at {where}")
    changes = answer.get("changes") or {
        each["textDocument"]["uri"]: each["edits"] for each in answer["documentChanges"]
    }
    count = apply(changes)
    server.notify(
        "workspace/didChangeWatchedFiles", {"changes": [{"uri": uri, "type": 2} for uri in changes]}
    )
    print(f"{where} -> {new}: {count} places in {len(changes)} files")
    mentions(dotted.rpartition(".")[2], new)


def mentions(old: str, new: str) -> None:
    """Replace a class's name in comments, strings and documents if no symbol has it any more; else list them.

    A name that is an English word too (``Watch``, ``Control``) is only listed: headers and sentences have it.
    """
    word = re.compile(rf"\b{re.escape(old)}\b")
    files = [path for path in tracked() if word.search(path.read_text())]
    symbols = any(_is_symbol(path, old) for path in files if path.suffix == ".py")
    for path in files:
        text = path.read_text()
        if _COMPOUND.match(old) and not symbols:
            path.write_text(word.sub(new, text))
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if word.search(line) and old[:1].isupper():
                print(f"look: {path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")


def _is_symbol(path: Path, name: str) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        if _defines(node, name) or (isinstance(node, ast.Name) and node.id == name):
            return True
        if isinstance(node, ast.alias) and name in {node.name, node.asname}:
            return True
    return False


def main(arguments: list[str]) -> None:
    if not arguments or len(arguments) % 2:
        sys.exit(__doc__)
    settings = {
        "include": FOLDERS,
        "venvPath": ".",
        "venv": ".venv",
        "pythonVersion": "3.11",
        "typeCheckingMode": "off",
    }
    CONFIG.write_text(json.dumps(settings))
    server = LanguageServer()
    try:
        for where, new in zip(arguments[::2], arguments[1::2], strict=True):
            rename(server, where, new)
    finally:
        server.close()
        CONFIG.unlink()
    subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select", "I", "--fix", "--quiet", "."],
        cwd=ROOT,
        check=False,
    )
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", "."], cwd=ROOT, check=False)


if __name__ == "__main__":
    main(sys.argv[1:])
