"""Chat templates: what models use works, and hostile ones end with an error, soon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import MappingProxyType

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

import lbrx
from lbrx.models import chat, template_process

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
        ("{% generation %}{% set x = 1 %}a{{ x }}{% endgeneration %}{{ x }}", "a1"),
        ("{{ strftime_now('%Y') }}", f"{datetime.now():%Y}"),
        ("{% if tools %}a{% endif %}{% if documents is defined %}b{% endif %}", ""),
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
LETTERS = "'a' * 999999 ~ 'b' ~ 'a' * 999999"
HOSTILE = {
    "power": "{{ 9**(9**9) }}",
    "squares": DOUBLED.replace("'a'", "9").replace("@", "ns.a * ns.a"),
    "round": "{{ 5 | round(-100000000) }}",
    "divisibleby": "{{ (9 ** 2999999) is divisibleby(9 ** 999999 + 1) }}",
    "select": "{% set L = range(99999) | list %}{{ L | select('in', L) | list | length }}",
    "rfind": "{{ ('a' * 9999999).rfind(" + LETTERS + ") }}",
    "rsplit": "{{ ('a' * 9999999).rsplit(" + LETTERS + ") }}",
    "rpartition": "{{ ('a' * 9999999).rpartition(" + LETTERS + ") }}",
    "punycode": "{% set ns = namespace(a='') %}{% for i in range(20000) %}"
    "{% set ns.a = ns.a ~ '%c' % (20200 - i) %}{% endfor %}{{ ns.a.encode('punycode') | length }}",
    "sort": "{{ (['A' * 3999999] * 9999) | sort | length }}",
    "map": "{{ ([range(99999) | list] * 9999) | map('list') | list }}",
    "wordwrap": "{{ ('a' * 9999999) | wordwrap(1) | length }}",
    "strip": "{{ ('a' * 999999).strip('b' * 999999 ~ 'a') }}",
    "slice": "{{ [1] | slice(5000000000) | list }}",
    "sum of lists": "{{ ([[1]] * 999999) | sum(start=[]) }}",
    "compared": NEST + NEST.replace("x", "y") + "{{ x == y }}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}"
    "{% endfor %}",
    "recursive macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "repeated text": "{{ 'a' * 5000000000 }}",
    "repeated list": "{{ [1] * 5000000000 }}",
    "nested lists": NEST + "{{ x }}",
    "doubled": DOUBLED.replace("@", "ns.a + ns.a"),
    "doubled block": "{% set x = 'a' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "% width": "{{ '%5000000000d' % 1 }}",
    "format width": "{{ '{:{}}'.format(1, 5000000000) }}",
    "join": "{{ ('b' * 99999).join(['a'] * 99999) }}",
    "copies": "{% set x = 'a' * 3999999 %}"
    + "".join(f"{{% set x{i} = x | upper %}}" for i in range(200)),
    "output": "{{ 'a' * 4000001 }}",
    "output of loops": "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
    "range": "{% for i in range(10**12) %}{% endfor %}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "long source": "{{ 1 }}" * 99999,
    "deep source": "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
    "deep sum": "{{ 1" + " + 1" * 9999 + " }}",
    "deep ifs": "{% if 1 %}" * 999 + "{% endif %}" * 999,
    "deep loops": "{% for i in range(9) %}" * 99 + "{% endfor %}" * 99,
    "huge error": "{{ raise_exception('a' * 3999999) }}",
    "error that is a list": NEST + "{{ raise_exception(x) }}",
    "include": "{% include '/etc/passwd' %}",
    "internals": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "its environment": "{{ self._TemplateReference__context.environment.filters }}",
}


@pytest.fixture
def limits(monkeypatch):
    """Sets limits of template_process, for a process that the test starts."""

    def change(**values: object) -> None:
        template_process._current.stop()
        for name, value in values.items():
            monkeypatch.setattr(template_process, name, value)

    yield change
    template_process._current.stop()


def test_hostile_templates_end(limits):
    limits(MAX_SECONDS=0.1, MAX_MEMORY=1 << 27)
    for name, template in HOSTILE.items():
        with pytest.raises(lbrx.FormatError, match="chat template failed: ") as found:
            pytest.fail(f"{name}: {render(template)[:80]}")
        assert len(str(found.value)) < 700, name
    assert render("{{ messages[0].content }}") == "Hi"


LIMITS = {
    "longer than 0.2 seconds of processor time": (HOSTILE["power"], {"MAX_SECONDS": 0.2}),
    "more than 512 MiB of memory": (HOSTILE["repeated text"], {}),
    "more than 64 MiB of memory": (
        "{% set x = 'a' * 99999999 %}" + HOSTILE["loops"],
        {"WATCHED": True, "MAX_MEMORY": 1 << 26},
    ),
    "more than 4,000,000 characters": (HOSTILE["output"], {}),
    "longer than 0.2 seconds:": (HOSTILE["loops"], {"MAX_WAIT": 0.2}),
}


@pytest.mark.parametrize("message", LIMITS)
def test_each_limit_is_named(message, limits):
    template, values = LIMITS[message]
    limits(**values)
    with pytest.raises(lbrx.FormatError, match=f"{message}.* correct the template, or give"):
        render(template)


@pytest.mark.parametrize(
    ("path", "prefix", "message"),
    [
        ("", sys.base_prefix, None),
        ("", "/nonexistent", r"has none \(/nonexistent/bin/python3"),
        ("/bin/true", sys.base_prefix, r"/bin/true does not start .* \(status 0\)"),
        ("/nonexistent", sys.base_prefix, "/nonexistent does not start"),
    ],
    ids=["embedded", "alone", "another program", "missing"],
)
def test_programs_without_an_interpreter(path, prefix, message, limits, monkeypatch):
    limits()
    monkeypatch.setattr(sys, "executable", path)
    monkeypatch.setattr(sys, "base_prefix", prefix)
    if message is None:
        assert render("{{ 1 }}") == "1"
    else:
        with pytest.raises(lbrx.LbrxError, match=message):
            render("{{ 1 }}")


def circular() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"a", "it holds b'a'"),
        ({1, 2}, "it holds {1, 2}"),
        ({(1, 2): 3}, "not tuple"),
        (10**5000, "Exceeds the limit"),
        (circular(), "Circular"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_are_not_json(value, message):
    with pytest.raises(lbrx.LbrxError, match=f"cannot be written as JSON .*{message}.*: give"):
        render("{{ messages }}", [{"role": "user", "content": "Hi", "more": value}])


def test_values_that_are_json():
    tools = [{"name": "f", "more": MappingProxyType({"a": (1, 2.5, None, True)})}]
    messages = [{"role": "user", "content": "\ud800 \U0001f600", "tools": tools}]
    text = render("{{ messages[0].tools | tojson }}{{ messages[0].content }}", messages)
    assert text == '[{"name": "f", "more": {"a": [1, 2.5, null, true]}}]\ud800 \U0001f600'


def test_threads_share_the_process():
    def rendered(number: int) -> list[str]:
        return [render("{{ messages[0].content }}", content(number)) for _ in range(20)]

    def content(number: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": str(number) * 999}]

    with ThreadPoolExecutor(8) as pool:
        for number, texts in enumerate(pool.map(rendered, range(8))):
            assert texts == [str(number) * 999] * 20


def helper() -> int:
    render("{{ 1 }}")
    return template_process._current.process._process.pid


def test_the_process_is_kept_and_replaced():
    first = helper()
    assert helper() == first
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert helper() != first


def test_an_interrupted_template_is_stopped():
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = helper()
    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            render(HOSTILE["loops"])
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert helper() != before


FORKED = """
import os, signal
from lbrx.models import template_process as t
assert t.render("{{ 1 }}", {}) == "1"
t._current.lock.acquire()  # as another thread may have it
child = os.fork()
if not child:
    assert t._current.process is None
    os._exit(int(t.render("{{ 7 }}", {})))
assert os.waitpid(child, 0)[1] >> 8 == 7
t._current.lock.release()
assert t.render("{{ 2 }}", {}) == "2"
if not os.fork():
    signal.pause()
print(t._current.process._process.pid, flush=True)
os.kill(0, signal.SIGKILL)
"""


def test_forks_and_the_end_of_the_parent():
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, start_new_session=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    deadline = time.monotonic() + 60
    while (state := states([int(done.stdout)])) and not state.startswith("Z"):
        assert time.monotonic() < deadline, state
        time.sleep(0.01)


def states(processes: list[int]) -> str:
    command = ["ps", "-o", "stat=", "-p", ",".join(map(str, processes))]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


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
