"""The page about task files: every key with its default, from the dataclasses that read them."""

from __future__ import annotations

from marlaas.engine.spec import (
    MOST_MEMBERS,
    REQUIRED,
    ComponentSpec,
    DataSpec,
    EvalSpec,
    KeepSpec,
    QueueSpec,
    SamplingSpec,
    SpecField,
    SuiteSpec,
    TaskSpec,
    TrainSpec,
    WatchSpec,
    component_fields,
    docstrings,
    policy_fields,
    spec_fields,
    suite_fields,
)

from .markdown import allowed, code, sentence, table, value

TABLES = {
    "": "",
    "policy": "The adapter that is trained.",
    "train": TrainSpec.__doc__,
    "sampling": SamplingSpec.__doc__,
    "queue": QueueSpec.__doc__,
    "eval": EvalSpec.__doc__,
    "keep": KeepSpec.__doc__,
    "watch": WatchSpec.__doc__,
    "data": DataSpec.__doc__,
}
OF_SUITES = ("eval.suite.name", "eval.suite.environment")
"""Keys that every suite has."""
_HEAD = """# Task file

A task file is TOML. `tenant`, `name` and `environment` are required; every other key has a default. A key that does not
exist, a value outside its range and keys that contradict each other are refused when the task is submitted.

A list in a key marked ¹ makes a sweep: one task for each value. See [Sweeps](../guides/queue.md#sweeps).
"""
_FREE = """
## `[environment_config]`

The environment's own parameters. `marlaas env show NAME` lists them. A list is a value of the environment; to sweep
such a key, name it under `[sweep]`.

## `[sweep]`

Keys by their dotted names, each with a list of values. All lists together make a grid of at most {most:,} tasks.

```toml
[sweep]
"environment_config.digits" = [2, 3]
```

## `[agents]`

{agents} Only together with `[policies.NAME]`.
"""


def page() -> str:
    """The Markdown of the page."""
    parts = [_HEAD]
    for name, about in TABLES.items():
        parts.append(f"## {code(f'[{name}]') if name else 'Top level'}\n\n{about or ''}".rstrip())
        parts.append(_rows([field for field in spec_fields() if field.table == name]))
        if name == "eval":
            parts.append(f"`agents` is a table: {docstrings(EvalSpec)['agents']}")
            parts.append(
                "## `[[eval.suite]]`\n\nFurther environments that the policy is measured on, one in each table."
                " `config` is a table of the environment's own parameters. See [Evaluation](../guides/evaluation.md)."
            )
            parts.append(_rows([field for field in suite_fields() if field.table == "eval.suite"]))
            parts.append(f"`data` is a table: {docstrings(SuiteSpec)['data']}")
        if name == "data":
            said = docstrings(DataSpec)
            parts += [f"`columns` is a table: {said['columns']}", f"`split` is a table: {said['split']}"]
        if name == "policy":
            parts.append(
                "## `[policies.NAME]`\n\nSeveral policies by name, in place of `[policy]`. "
                "See [Several policies](../guides/policies.md)."
            )
            parts.append(_rows(policy_fields()))
        if not name:
            parts.append(
                "## `[[mixture]]`\n\nSeveral environments, in place of `environment` and `[environment_config]`. "
                "See [Task files](../guides/tasks.md#several-environments)."
            )
            parts.append(_rows([field for field in component_fields() if field.table == "mixture"]))
            said = docstrings(ComponentSpec)
            parts.append(f"`config` is a table: {said['config']} `data` is a table: {said['data']}")
    parts.append(_FREE.format(most=MOST_MEMBERS, agents=docstrings(TaskSpec)["agents"]))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _rows(fields: list[SpecField] | tuple[SpecField, ...]) -> str:
    return table(("Key", "Type", "Default", "Allowed", "Meaning"), map(_row, fields))


def _row(field: SpecField) -> tuple[str, ...]:
    default = (
        "required"
        if field.key in (*REQUIRED, *OF_SUITES)
        else "absent"
        if field.default is None
        else value(field.default)
    )
    key = code(field.name) + (" ¹" if field.swept else "")
    return (
        key,
        field.kind,
        default,
        allowed(field.low, field.high, field.choices) + (", or auto" if field.auto else ""),
        sentence(field.about),
    )
