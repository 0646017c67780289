"""Templates from anywhere: which one is taken, what their errors say, and where those end that would not."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.errors import BaseModelError
from marlaas.engine.rollout.template import ChatTemplate, load_template

USER = [{"role": "user", "content": "Hi"}]
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f"}}]


def render(source: str, tools: list[dict[str, Any]] | None = None) -> str:
    return ChatTemplate(source, {}).render(USER, tools)


def settings(folder: Path, **values: object) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return folder


def test_the_default_of_several_and_the_one_for_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}]
    template = load_template(settings(tmp_path, chat_template=named))
    assert (template.render(USER, None), template.render(USER, TOOLS)) == ("plain", "1 tools")
    alone = load_template(settings(tmp_path, chat_template=named[:1]))
    assert alone.render(USER, TOOLS) == "plain"
    with pytest.raises(BaseModelError, match="no chat template named default"):
        load_template(settings(tmp_path, chat_template=named[1:]))


def test_special_tokens_are_spelled_in_two_ways(tmp_path: Path) -> None:
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}, "add_bos_token": True}
    template = load_template(
        settings(tmp_path, chat_template="{{ bos_token }}{{ eos_token }}{{ add_bos_token }}", **tokens)
    )
    assert template.render(USER, None) == "<s></s>"


def test_the_switch_is_told_only_where_a_task_sets_it() -> None:
    template = ChatTemplate("{{ enable_thinking if enable_thinking is defined else 'nothing' }}", {})
    assert [template.render(USER, None, told) for told in (None, True, False)] == ["nothing", "True", "False"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("a\nb\n{% for m in messages %}", "line 3: "),
        ("a\n{{ m | nofilter }}", "line 2: No filter named 'nofilter'"),
        ("{{ 1 is notest }}", "line 1: No test named 'notest'"),
        ("{% nothing %}", "unknown tag 'nothing'"),
        ("{{ 'open }}", "line 1: "),
    ],
)
def test_a_template_that_does_not_compile_is_one_sentence(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(BaseModelError, match=r"does not compile: chat_template\.jinja, line") as raised:
        load_template(tmp_path)
    assert said in raised.value.message and "\n" not in raised.value.message and raised.value.message.endswith(".")
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(BaseModelError, match=r"chat_template in tokenizer_config\.json, line"):
        load_template(settings(tmp_path, chat_template=source))


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[5].content }}",
        "{{ messages + 1 }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 % 0 }}",
    ],
)
def test_a_template_that_refuses_is_one_sentence(source: str) -> None:
    with pytest.raises(BaseModelError, match="refuses this conversation") as raised:
        render(source)
    assert "\n" not in raised.value.message and raised.value.message.endswith(".")


LONG = "{% set r = range(100000) %}"


@pytest.mark.parametrize(
    "source",
    [
        f"{LONG}{{% for a in r %}}{{% for b in r %}}{{% endfor %}}{{% endfor %}}",
        "{% for a in range(10 ** 9) %}{% endfor %}",
        f"{LONG}{{% for a in r %}}{{% for b in r %}}xxxxxxxxxx{{% endfor %}}{{% endfor %}}",
        "".join(f"{{% for {name} in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] %}}" for name in "abcdefghi") + "{% endfor %}" * 9,
        "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{% set n = namespace(x=7) %}{% for a in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for a in range(60) %}{% set n.x = n.x | replace('a', 'aa') %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for a in range(60) %}{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for a in range(60) %}{% set n.x = '%s%s' % (n.x, n.x) %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    ],
)
def test_a_hostile_template_ends(source: str) -> None:
    began = time.process_time()
    with pytest.raises(BaseModelError, match="chat template"):
        render(source)
    assert time.process_time() - began < 30


def test_bounds_are_no_hindrance() -> None:
    """Loops know their place and length, conditions and all joining work; each rendering begins afresh."""
    source = (
        "{% for a, b in {'x': 1, 'y': 2}.items() %}{{ loop.index0 }}{{ a ~ b }}{{ ', ' if not loop.last }}{% endfor %}"
        "{% for m in messages if m.role == 'user' %}{{ loop.length }}{{ m.content + '!' }}{% endfor %}"
        "{% for m in messages[::-1] %}{% if loop.first %}{% continue %}{% endif %}{% endfor %}"
        "{% for x in nothing %}{% else %} none{% endfor %}{% for n in range(3) %}{{ loop.previtem }}{% endfor %}"
    )
    template = ChatTemplate(source, {})
    assert {template.render(USER, None) for _ in range(3)} == {"0x1, 1y21Hi! none01"}
    many = ChatTemplate("{% for n in range(90000) %}{% endfor %}", {})
    assert [many.render(USER, None) for _ in range(30)] == [""] * 30
