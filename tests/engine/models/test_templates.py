"""Templates from anywhere: which one is taken, what their errors say, and where those end that would not."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.templates import ChatTemplate, load_template

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
BIG = "{% set b = 'a' * 4000000 %}"
TEXT = "{% set b = 'a' * 1000000 %}"
FOREVER = "{% for a in range(90000) %}"


def doubled(how: str, first: str = "[1]") -> str:
    """Twice itself, sixty times."""
    return f"{{% set n = namespace(x={first}) %}}{{% for a in range(60) %}}{{% set n.x = {how} %}}{{% endfor %}}"


@pytest.mark.parametrize(
    "source",
    [
        f"{LONG}{{% for a in r %}}{{% for b in r %}}{{% endfor %}}{{% endfor %}}",
        "{% for a in range(1000000000) %}{% endfor %}",
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
        doubled("[n.x, n.x]") + "{{ n.x }}",
        doubled("(n.x, n.x)", "(1,)") + "{{ {n.x: 1} }}",
        doubled("{'a': n.x, 'b': n.x}") + "{{ n.x }}",
        doubled("dict(a=n.x, b=n.x)") + "{{ n.x | tojson }}",
        f"{{% set n = namespace(x=7) %}}{FOREVER}{{% set n.x = n.x - (0 - n.x) %}}{{% endfor %}}",
        "{% set n = namespace(x='a') %}{% for a in range(60) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
        "{{ 'a' | center(300000000) }}",
        "{{ 'a'.center(300000000) }}",
        "{{ '%300000000d' % 1 }}",
        "{{ '%*d' % (300000000, 1) }}",
        "{{ '{:300000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 300000000) }}",
        "{{ 'a' | indent(300000000, true) }}",
        "{{ (1).to_bytes(300000000, 'big') }}",
        "{{ 'a'.encode() * 300000000 }}",
        "{{ 1.5 | round(1000000000, 'ceil') }}",
        "{{ lipsum(n=300000000) }}",
        "{{ messages | tojson(indent=300000000) }}",
        f"{BIG}{FOREVER}{{% if 'z' in b %}}{{% endif %}}{{% endfor %}}",
        f"{BIG}{FOREVER}{{% set c = b[1:] %}}{{% endfor %}}",
        f"{BIG}{FOREVER}{{{{ b | upper | length }}}}{{% endfor %}}",
        f"{BIG}{{% set n = namespace(x=[]) %}}{FOREVER}{{% set n.x = n.x + [b ~ a] %}}{{% endfor %}}",
        f"{BIG}{{{{ b.replace('a', b) }}}}",
        f"{TEXT}{{{{ b | replace('a', b) }}}}",
        f"{TEXT}{{{{ b.join(range(1000) | map('string')) }}}}",
        f"{TEXT}{{{{ range(1000) | join(b) }}}}",
        f"{TEXT}{{{{ b.translate({{97: b}}) }}}}",
        f"{TEXT}{{{{ ('%(a)s' * 1000000) % {{'a': b}} }}}}",
        f"{TEXT}{{{{ ('{{0}}' * 1000000).format(b) }}}}",
        "{{ ([[1]] * 200000) | sum(start=[]) }}",
        "{% for a in range(90000) recursive %}{{ loop(range(90000)) }}{% endfor %}",
        f"{FOREVER}{'{{ 1 + 1 }}' * 1000}{{% endfor %}}",
        f"{{% macro f() %}}{'{{ 1 + 1 }}' * 1000}{{% endmacro %}}{FOREVER}{{{{ f() }}}}{{% endfor %}}",
        f"{FOREVER}{'x' * 200000}{{% endfor %}}",
    ],
)
def test_a_hostile_template_ends(source: str) -> None:
    began = time.process_time()
    with pytest.raises(BaseModelError, match="chat template"):
        render(source)
    assert time.process_time() - began < 30


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("".join(f"{{% for a{n} in [1] %}}" for n in range(25)) + "{% endfor %}" * 25, "too many statically nested"),
        (f"{{{{ {'(' * 3000}1{')' * 3000} }}}}", "recursion"),
        (f"{{{{ x{'|upper' * 3000} }}}}", "recursion"),
        ("x" * (1 << 19), "characters"),
        ("{{ 'a' | center(300000000) }}", "No filter named 'center'"),
        ("{{ 'a'.center(300000000) }}", "refuses this conversation: a template may not call center"),
        ("{{ raise_exception('no ' * 2000) }}", "no…"),
    ],
)
def test_a_template_that_no_model_has_is_refused_in_a_sentence(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(BaseModelError) as raised:
        load_template(tmp_path)
    assert said in raised.value.message and len(raised.value.message) < 700 and "\n" not in raised.value.message


def test_a_template_may_want_a_system_prompt(tmp_path: Path) -> None:
    refuses = "{% if messages[0].role != ROLE %}{{ raise_exception('first ' ~ ROLE) }}{% endif %}"
    for role, message in (("'system'", ""), ("'tool'", "first tool")):
        (tmp_path / "chat_template.jinja").write_text(refuses.replace("ROLE", role))
        with pytest.raises(BaseModelError, match=message) if message else contextlib.nullcontext():
            load_template(tmp_path)


@pytest.mark.parametrize("source", ["{{ f(" + "a," * 60_000 + ") }}", "{% if a %}" + "{% elif a %}" * 10_000])
def test_a_large_source_ends(tmp_path: Path, source: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    began = time.process_time()
    with pytest.raises(BaseModelError, match="chat template"):
        load_template(tmp_path)
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
