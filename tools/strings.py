"""Writes the list of all texts of the program that people read: ``python -m tools.strings`` makes it.

The list is found in the syntax trees of ``app``, ``engine`` and ``plugins``, by what a text looks like: it has words,
and is no docstring, no SQL, no style sheet and no pattern. A test compares it, so that a change of a word is seen in a
diff. Imports nothing of the program.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "strings.txt"
FOLDERS = ("app", "engine", "plugins")
UNREAD = ("plugins/bundled", "plugins/templates")
"""Folders whose texts are for models, or are copied as files."""
HEAD = """Every text of the program that people read, by file, in the order of the code; {…}: what is filled in.
`python -m tools.strings` writes this list. Read what you add: short main clauses, usual words, the cause first.
"""
PATTERNS = {"compile", "match", "fullmatch", "search", "sub", "split", "findall", "finditer"}
QUERIES = {"execute", "executemany", "executescript", "all", "query"}
STYLES = {"CSS", "DEFAULT_CSS"}
_SQL = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|PRAGMA|ATTACH|BEGIN|VACUUM|WITH)\s|.*\b(FROM|WHERE|JOIN) "
)
_STYLE = re.compile(r"[^{}]*\{[^{}]*:[^{}]*;[^{}]*\}", re.DOTALL)
_CODE = re.compile(r"^(import|from|def|async def|class) ", re.MULTILINE)
_WORDS = re.compile(r"[A-Za-z]{2}")
_SEVERAL = re.compile(r"\S\s+\S")
_TITLE = re.compile(r"[A-Z][A-Z-]+|[A-Z][a-z]+[.!?…]")
"""The head of a column, or a sentence of one word."""
_COLOUR = re.compile(r"\$[a-z]+-?")


def texts(source: str) -> Iterator[str]:
    """The texts for people in a module, in their order; what an f-string fills in is ``{…}``."""
    yield from _found(ast.parse(source), titles=True)


def listed(root: Path = ROOT) -> str:
    """The whole list, as the file has it."""
    parts = [HEAD]
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if name.startswith(UNREAD) or "__pycache__" in path.parts:
                continue
            found = list(dict.fromkeys(texts(path.read_text(encoding="utf-8"))))
            if found:
                parts.append("\n".join([name, *(f"    {text}" for text in found)]) + "\n")
    return "\n".join(parts)


def _found(node: ast.AST, titles: bool) -> Iterator[str]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.Assign | ast.AnnAssign) and STYLES & _targets(node):
        return
    if isinstance(node, ast.JoinedStr):
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values)
        if _for_people(text, titles):
            yield _shown(text)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield from _found(part.value, titles=False)
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str) and _for_people(node.value, titles):
            yield _shown(node.value)
        return
    if isinstance(node, ast.Subscript):
        yield from _found(node.value, titles=False)  # what stands in the brackets is a key
        return
    children = ast.iter_child_nodes(node)
    if isinstance(node, ast.Call) and _called(node) in PATTERNS | QUERIES:
        children = iter(())
        yield from _found(node.func, titles)
    for child in children:
        yield from _found(child, titles)


def _targets(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _called(call: ast.Call) -> str:
    """The name of what is called: ``compile`` of ``re.compile``."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _for_people(text: str, titles: bool) -> bool:
    """Whether a person may read it: several words, or one that is written like a title."""
    machine = _COLOUR.search(text) or _SQL.match(text) or _STYLE.fullmatch(text.strip()) or _CODE.search(text)
    if machine or not _WORDS.search(text):
        return False
    return bool(_SEVERAL.search(text)) or (titles and bool(_TITLE.fullmatch(text)))


def _shown(text: str) -> str:
    """A text on one line."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").strip()


if __name__ == "__main__":
    LIST.write_text(listed(), encoding="utf-8")
