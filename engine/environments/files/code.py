"""What of a plugin's file decides how it plays, so that an edited comment is no other environment. Pure.

Of Python: the syntax tree, without comments, whitespace, the way in which a text is quoted, and the docstring of the
module. Docstrings of functions and classes count: a tool's is what the model reads. So does the block in which a file
declares its libraries (PEP 723), as TOML. Of TOML: the values, without comments and whitespace, in their order. Any
other file counts byte by byte: a space may be part of a prompt.
"""

from __future__ import annotations

import ast
import json
import re

from ...spec import read_toml

_LARGEST = 1 << 20
"""Bytes of a file that is looked into: a larger one is data, and would take seconds to parse."""
_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""The expression of PEP 723."""


def code_of(path: str, content: bytes) -> bytes:
    """What of a file decides how it plays; all of it where it cannot be read as what its ending says."""
    if len(content) > _LARGEST:
        return content
    try:
        if path.endswith(".py"):
            return _python(content)
        if path.endswith(".toml"):
            return _values(content.decode("utf-8-sig"))
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the parser calls deep nesting a lack of memory
        pass
    return content


def _python(content: bytes) -> bytes:
    tree = ast.parse(content)
    if ast.get_docstring(tree, clean=False) is not None and b"__doc__" not in content:
        del tree.body[0]
    text = content.decode("utf-8", "replace").replace("\r\n", "\n")
    blocks = (block["content"] for block in _BLOCK.finditer(text) if block["type"] == "script")
    declared = [_values("\n".join(line[2:] for line in block.splitlines())) for block in blocks]
    return b"\0".join([ast.dump(tree).encode("utf-8", "surrogatepass"), *declared])


def _values(text: str) -> bytes:
    return json.dumps(read_toml(text), default=str).encode()
