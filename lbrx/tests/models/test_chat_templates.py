"""Chat templates: what models use works, and hostile ones end with an error, soon."""

from __future__ import annotations

import json
import threading

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

import lbrx
from lbrx.models import chat, template_sandbox

USER = [{"role": "user", "content": "Hi"}]


class Settings:
    """What `render` asks of a tokenizer."""

    def __init__(self, template: str) -> None:
        self.settings = {"chat_template": template}

    def special_token(self, name: str) -> str:
        return "<s>" if name == "bos_token" else ""


def render(template: str, messages=USER) -> str:
    return chat.render(Settings(template), messages)


def test_the_texts_of_a_content_in_parts():
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": " there"}]
    messages = [{"role": "user", "content": parts}]
    assert render("{{ '<' + messages[0].content + '>' }}", messages) == "<Hi there>"
    assert messages[0]["content"] is parts


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (
            "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m['content'] }}{% endfor %}",
            "<s>user: Hi",
        ),
        (
            "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ loop.last }}{% endfor %}",
            "1True",
        ),
        (
            "{% set ns = namespace(a='') %}{% for i in range(3) %}{% set ns.a = ns.a ~ i %}{% endfor %}"
            "{{ ns.a }}",
            "012",
        ),
        (
            "{% macro f(x, y=2) %}<{{ x }}{{ y }}>{% endmacro %}{{ f(1) }}{{ f(3, y=4) }}",
            "<12><34>",
        ),
        ("{{ messages[0]['content'][1:] }}{{ messages[::-1][0].role }}", "iuser"),
        ("{{ messages | tojson }}", json.dumps(USER)),
        ("{{ {'a': [1, 2]} | tojson(indent=2) }}", json.dumps({"a": [1, 2]}, indent=2)),
        ("{{ ['a', 'b'] | join(', ') }}{{ 'x'.join(['1', '2']) }}", "a, b1x2"),
        ("{{ messages | map(attribute='role') | join('-') }}", "user"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ 'a</think>b'.split('</think>')[-1].strip('\\n') | trim | upper }}", "B"),
        ("{{ 'abc' | replace('b', 'xx') }}{{ 'abc'.replace('c', '') }}", "axxcab"),
        (
            "{{ '%s=%05.1f' % ('x', 2) }}{{ '%d' | format(7) }}{{ '{:>4}|{}'.format(1, 'y') }}",
            "x=002.07   1|y",
        ),
        (
            "{{ 2 ** 10 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 'ab' * 2 }}{{ 1 + 2 - 4 }}{{ 1 / 2 }}",
            "102433abab-10.5",
        ),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        (
            "{% for x in [1, [2, [3]]] recursive %}"
            "{{ loop(x) if x is iterable else x }}{% endfor %}",
            "123",
        ),
        ("{% set x %}{{ 1 }}{{ 2 }}{% endset %}{{ x }}", "12"),
        ("{% for a, b in {'k': 'v'}.items() %}{{ a }}{{ b }}{% endfor %}", "kv"),
        ("{{ {'k': 'v'}.keys() | join }}{{ range(3) | list }}{{ (1, 2) }}", "k[0, 1, 2](1, 2)"),
        ("{% if x is defined %}no{% else %}{{ x }}yes{% endif %}", "yes"),
        ("{{ 'text' | indent(2, first=true) }}", "  text"),
    ],
)
def test_what_templates_do(template, wanted):
    assert render(template) == wanted


def test_a_long_conversation():
    messages = [{"role": "user", "content": "word " * 400}] * 600
    template = (
        "{% for m in messages %}{% if loop.index0 == messages | length - 1 %}!{% endif %}"
        "{{ '<' + m['role'] + '>' + m['content'] | trim + '\\n' }}{% endfor %}"
    )
    text = render(template, messages)
    assert len(text) == 600 * (len("<user>\n") + 5 * 400 - 1) + 1


NEST = "{% set x = [1] %}" + "{% set x = [x, x] %}" * 60
DOUBLED = "{% set ns = namespace(a='a') %}{% for i in range(90) %}{% set ns.a = @ %}{% endfor %}"
HOSTILE = {
    "power": "{{ 9**(9**9) }}",
    "power of a power": "{% set x = 9 ** 999 %}{{ x ** x }}",
    "squares": "{% set ns = namespace(a=9) %}{% for i in range(90) %}{% set ns.a = ns.a * ns.a %}"
    "{% endfor %}",
    "repeated text": "{{ 'a'*5000000000 }}",
    "repeated by text": "{{ 5000000000*'a' }}",
    "repeated list": "{{ [1]*5000000000 }}",
    "repeated twice": "{{ 'a'*4000000*4000000 }}",
    "doubled +": DOUBLED.replace("@", "ns.a + ns.a"),
    "doubled ~": DOUBLED.replace("@", "ns.a ~ ns.a"),
    "doubled join": DOUBLED.replace("@", "[ns.a, ns.a] | join"),
    "doubled %": DOUBLED.replace("@", "'%s%s' % (ns.a, ns.a)"),
    "doubled format": DOUBLED.replace("@", "'{0}{0}'.format(ns.a)"),
    "doubled list": DOUBLED.replace("@", "[ns.a, ns.a]"),
    "doubled tuple": DOUBLED.replace("@", "(ns.a, ns.a)"),
    "doubled dict": DOUBLED.replace("@", "{'a': ns.a, 'b': ns.a}"),
    "doubled dict()": DOUBLED.replace("@", "dict(a=ns.a, b=ns.a)"),
    "doubled namespace": DOUBLED.replace("@", "namespace(a=ns.a, b=ns.a)"),
    "doubled sum": DOUBLED.replace("@", "[[ns.a], [ns.a]] | sum(start=[])"),
    "doubled block": "{% set x = 'a' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "doubled macro": "{% macro f(t) %}{{ t }}{{ t }}{% endmacro %}"
    + DOUBLED.replace("@", "f(ns.a)"),
    "nested lists": NEST + "{{ x }}",
    "nested lists compared": NEST + NEST.replace("x", "y") + "{{ x == y }}",
    "filled afterwards": "{% set a0 = namespace(v=1) %}"
    + "".join(f"{{% set a{i} = namespace(v=1) %}}" for i in range(1, 60))
    + "".join(f"{{% set a{i}.v = [a{i + 1}, a{i + 1}] %}}" for i in range(59))
    + "{{ a0 }}",
    "filled afterwards, as text": "{% set a0 = namespace(v=1) %}"
    + "".join(f"{{% set a{i} = namespace(v=1) %}}" for i in range(1, 60))
    + "".join(f"{{% set a{i}.v = [a{i + 1}, a{i + 1}] %}}" for i in range(59))
    + "{{ a0 | upper }}",
    "range": "{% for i in range(10**12) %}{% endfor %}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops that skip": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}"
    "{% endfor %}",
    "recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}"
    "{% endfor %}",
    "recursive macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "output of loops": "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
    "copies": "{% set x = 'a' * 3999999 %}"
    + "".join(f"{{% set x{i} = x[1:] %}}" for i in range(200)),
    "copies by a filter": "{% set x = 'a' * 3999999 %}"
    + "".join(f"{{% set x{i} = x | upper %}}" for i in range(200)),
    "% width": "{{ '%5000000000d' % 1 }}",
    "% star": "{{ '%*d' % (5000000000, 1) }}",
    "% precision": "{{ '%.999999999f' % 1 }}",
    "% many": "{{ ('%9999d' * 9999) % ((1,) * 9999) }}",
    "% filter": "{{ '%5000000000d' | format(1) }}",
    "format width": "{{ '{:5000000000}'.format(1) }}",
    "format nested width": "{{ '{:{}}'.format(1, 5000000000) }}",
    "format many": "{{ ('{0:9999}' * 9999).format(1) }}",
    "format_map": "{{ '{a:5000000000}'.format_map({'a': 1}) }}",
    "format repr": NEST + "{{ '{!r}'.format(x) }}",
    "center": "{{ 'a'.center(5000000000) }}",
    "center filter": "{{ 'a' | center(5000000000) }}",
    "ljust": "{{ 'a'.ljust(5000000000) }}",
    "zfill": "{{ 'a'.zfill(5000000000) }}",
    "expandtabs": "{{ ('\t' * 99999).expandtabs(99999) }}",
    "replace": "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "replace nothing": "{{ ('a' * 99999) | replace('', 'b' * 99999) }}",
    "replace by name": "{{ ('a' * 99999) | replace(new='b' * 99999, old='a') }}",
    "join": "{{ ('b' * 99999).join(['a'] * 99999) }}",
    "join a range": "{{ range(99999) | join('b' * 99999) }}",
    "join a generator": "{{ range(99999) | map('string') | join('b' * 99999) }}",
    "translate": "{{ ('a' * 99999).translate({97: 'b' * 99999}) }}",
    "to_bytes": "{{ (1).to_bytes(5000000000, 'big') }}",
    "indent": "{{ ('a\n' * 99999) | indent(99999) }}",
    "batch": "{{ [1] | batch(5000000000, 0) | list }}",
    "slice": "{{ [1] | slice(5000000000) | list }}",
    "sum of many lists": "{{ ([[1]] * 99999) | sum(start=[]) }}",
    "sum of lists": "{{ ([[1]] * 999999) | sum(start=[]) }}",
    "tojson": "{{ [1] | tojson(indent=5000000000) }}",
    "strip": "{{ ('a' * 999999).strip('b' * 999999 ~ 'a') }}",
    "lipsum": "{{ lipsum(5000000) }}",
    "striptags": "{{ ('<!--' * 999999) | striptags }}",
    "long source": "{{ 1 }}" * 99999,
    "deep source": "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
    "deep lists": "{{ " + "[" * 9999 + "]" * 9999 + " }}",
    "deep sum": "{{ 1" + " + 1" * 9999 + " }}",
    "deep ifs": "{% if 1 %}" * 999 + "{% endif %}" * 999,
    "deep loops": "{% for i in range(9) %}" * 99 + "{% endfor %}" * 99,
    "huge error": "{{ raise_exception('a' * 3999999) }}",
    "error that is a list": NEST + "{{ raise_exception(x) }}",
    "include": "{% include '/etc/passwd' %}",
    "internals": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "its environment": "{{ self._TemplateReference__context.environment._end }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end(name):
    before = threading.active_count()
    with pytest.raises(lbrx.FormatError, match="chat template failed: ") as found:
        render(HOSTILE[name])
    assert len(str(found.value)) < 700
    assert threading.active_count() == before


def test_the_time_is_bounded(monkeypatch):
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", -1.0)
    with pytest.raises(lbrx.FormatError, match="it takes longer than"):
        render("{% for i in range(9) %}{{ i }}{% endfor %}")


FEATURES = """
{%- for key, value in {'b': 1, 'a': {'x': [1, true, none]}} | dictsort -%}
{{ key }}={{ value }};{% endfor %}
{%- macro inner(y) %}[{{ caller(y) }}{{ varargs }}{{ kwargs }}]{% endmacro %}
{%- call(x) inner('a', 2, b=3) %}{{ x }}{% endcall %}
{%- filter upper %}abc{{ messages | length }}{% endfilter %}
{%- for g in messages | groupby('role') %}{{ g.grouper }}:{{ g.list | length }} {% endfor %}
{{ messages | map(attribute='role') | unique | sort | list }}
{{ (messages | rejectattr('role', 'eq', 'user') | list)[:1] }}{{ (messages | last).role }}
{{ [1, 2, 3] | sum }}{{ [[1], [2]] | sum(start=[]) }}{{ [3, 1] | max }}{{ 3.14159 | round(2) }}
{{ [1, 2, 3] | batch(2, 0) | list }}{{ [1, 2, 3] | slice(2) | list }}{{ 'a b' | title }}
{{ 'Hello {name}'.format(name='x') }}{{ '{0!r:>6}'.format('a') }}{{ '{a}'.format_map({'a': 1}) }}
{{ cycler('a', 'b').next() }}{{ dict(a=1).a }}{{ 'a' ~ 1 ~ none }}{{ 'x' | center(5) }}|
{%- for x in range(3) %}{{ loop.cycle('p', 'q') }}{{ loop.previtem }}{{ loop.revindex }}
{%- else %}none{% endfor %}{% with a = 1 %}{{ a }}{% endwith %}{{ 'a' if messages else 'b' }}
{{ '<b>' | escape }}{{ ('<b>' | safe) ~ '&' }}{{ 'é' | urlencode }}{{ undefined_name }}
{% set a, b = (1, 2) %}{{ a }}{{ b }}{{ 'aXb'.split('X') }}{{ 'ab'.upper().encode() | length }}
"""


def test_the_limits_change_nothing_else():
    """jinja2's own sandbox is the oracle."""
    messages = [{"role": role, "content": "x"} for role in ("system", "user", "assistant", "user")]
    options = {"trim_blocks": True, "lstrip_blocks": True}
    wanted = ImmutableSandboxedEnvironment(**options).from_string(FEATURES)
    assert render(FEATURES, messages) == wanted.render(messages=messages)
