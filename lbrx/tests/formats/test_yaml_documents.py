"""YAML within limits: values as PyYAML reads them, and refusals that name the line."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lbrx import FormatError
from lbrx.files.formats import yaml_documents
from lbrx.files.formats.yaml_documents import MAX_DEPTH, MAX_DOCUMENTS, MAX_VALUES, parse_yaml

VALUES_HERE = 3_000  # a lower limit, so that the texts are short


@pytest.fixture(params=["libyaml", "python"])
def parser(request, monkeypatch):
    """PyYAML with and without the C library, which its wheels do not have everywhere."""
    if request.param == "libyaml" and not yaml.__with_libyaml__:
        pytest.skip("PyYAML was built without libyaml")
    monkeypatch.setattr(yaml, "__with_libyaml__", request.param == "libyaml")


def read(text):
    return parse_yaml(text, "c.yml")


# Each is read as PyYAML's safe loader reads it.
LIKE_PYYAML = {
    "comments and indented lists": "# a\nx:   # b\n  - 1\n  -   y: 2\n      z: [3, 4] # c\n",
    "lists beside their key": "x:\n- a\n- b\n",
    "flow": "{a: [1, -2, +3], 'b': {c: d}, \"e\\n\": f}",
    "words": "[true, True, FALSE, yes, No, ON, off, y, n, null, ~, Null, TRue, {a: , b: }]",
    "numbers": "[0, 12, -7, 1.5, .5, -.5, 2., -2.0, 1.5e+3, 1e5, 1e-5, 1.0E-5, .inf, -.Inf, 123abc, 1.2.3]",
    "quotes": "['1', \"true\", '~', '2020-01-01', '', '<<', \"\\u00e9\\t\"]",
    "text": "[a/b+c, 'hf://a/b', https://a/b#e, C:\\x, <|im_start|>, a:b, -x, é, 日本]",
    "blocks": "a: |\n  x\n   y\n\nb: >-\n  x\n  y\nc: |+\n  z\n\n",
    "documents": "---\na: 1\n---\nb: 2\n...\n---\n--- ~\n",
    "no document": "# nothing\n",
    "anchors": "a: &x {b: [1, 2]}\nc: *x\nd: [*x, &y z, *y]\n",
    "an anchor in each document": "&a x\n---\n&a y\n",
    "merge keys": "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: {<<: *a, y: 5}\nd: {y: 6, <<: [*a, *b]}\n",
    "nested merge keys": "a: &a {x: 1}\nb: &b\n  <<: *a\n  y: 2\nc:\n  z: 3\n  <<: [{y: 4}, *b]\n",
    "merging nothing": "a: {<<: [], b: 1}",
    "tags": "[!!str 1, !!int '2', !!float 3, !!bool 'yes', !!null '', !!seq [a], !!map {b: c}]",
    "keys": "{2: a, true: b, ~: c, 1.5: d, '1': e}",
    "a long key": "? a\n: b\n? c\n",
    "JSON": '{"a": [1, 2.5, "x", null, true], "b": {"c": "\\u00e9"}}',
    "tabs": "a: 'd\te'\n",
    "Windows": "a: 1\r\nb:\r\n- c\r\n",
}


@pytest.mark.parametrize("case", LIKE_PYYAML)
def test_read_as_pyyaml_reads_it(parser, case):
    found, wanted = read(LIKE_PYYAML[case]), list(yaml.safe_load_all(LIKE_PYYAML[case]))
    assert repr(found) == repr(wanted)  # the types, too


def test_text_that_pyyaml_takes_for_something_else(parser):
    dates = ["2020-01-01", "2020-13-45", "2001-12-14t21:59:43.10-05:00"]
    numbers = ["012", "0x1f", "0b1", "1_000", "1:30", "190:20:30.15", "9" * 50, f"1.{'1' * 200}"]
    texts = [*dates, *numbers, "="]
    assert read("\n".join(f"- {text}" for text in texts)) == [texts]
    assert math.isnan(read(".nan")[0])


SCALARS = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False)
TEXTS = st.text(alphabet="axetrufnoyEN01289:.-+_~<> '\"#\n\té日", max_size=6)
VALUES = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
@settings(deadline=None, database=None, max_examples=60)
def test_what_pyyaml_writes_is_read_again(value):
    assert read(yaml.safe_dump(value, allow_unicode=True)) == [value]


def chained(first, following, count):
    """`count` lines, each of which uses the anchor of the one before."""
    return "\n".join([f"a0: &a0 {first}"] + [following.format(i, i - 1) for i in range(1, count)])


REFUSED = {
    # bombs
    "aliases": (chained("[x, x]", "a{0}: &a{0} [*a{1}, *a{1}]", 40), "line 10: more than 3,000"),
    "merge keys": (
        chained("{x: 1}", "a{0}: &a{0} {{<<: [*a{1}, *a{1}], y{0}: 1}}", 40),
        "line 9: more than 3,000 values, those of aliases",
    ),
    "mappings": (chained("{x: 1}", "a{0}: &a{0} {{x: *a{1}, y: *a{1}}}", 40), "line 9: more than"),
    "long text": (f"- &a {'x' * 6_400}\n- [{'*a, ' * 30}]", "line 2: more than 3,000"),
    "aliases in several documents": (
        "---\n".join(f"- &a [{'x, ' * 30}]\n- [{'*a, ' * 40}]\n" for _ in range(3)),
        "line 8: more than",
    ),
    "slices": (
        "slices:\n" + "- sources: [{model: a, layer_range: [0, 1]}]\n" * 20_000,
        "line 301: more",
    ),
    "values": ("[" + "x," * VALUES_HERE + "]", "line 1: more than 3,000 values"),
    "lists": ("[" * 100_000, "line 1: nested deeper than 64 levels: nest it less"),
    "mapping in mapping": ("\n".join(" " * i + "a:" for i in range(200)), "line 65: nested deeper"),
    "depth by aliases": (chained("[x]", "a{0}: &a{0} [*a{1}]", 80), "line 64: nested deeper"),
    "documents": ("---\n" * (MAX_DOCUMENTS + 1), "line 1001: more than 1,000 documents: put them"),
    "characters": ("#" * (1 << 20) + "\n", "longer than 1,048,576 characters"),
    # anchors and keys
    "an alias in itself": ("a: 1\nb: &x [*x]", r"line 2: \*x is used inside itself: write the"),
    "an alias of nothing": ("a: *x", r"line 1: \*x is not defined above"),
    "an alias of another document": ("&x 1\n---\n*x\n", r"line 3: \*x is not defined above"),
    "a repeated key": ("a: 1\nb: 2\na: 3", "line 3: 'a' is a key already on line 1: keep one"),
    "two merge keys": ("{<<: {a: 1},\n<<: {b: 1}}", "line 2: '<<' is a key already on line 1"),
    "a list as a key": ("? [a]\n: b", "line 1: a list or mapping is a key: write text"),
    "a mapping as a key": ("{a: b}: c", "line 1: a list or mapping is a key: write text"),
    "merging a text": ("a: 1\nb:\n  <<: x", "line 3: << takes over the keys of mappings"),
    "merging a list of texts": ("<<: [x]", "line 1: << takes over the keys of mappings"),
    # tags
    "bool": ("a: 1\nb: !!bool x", "line 2: 'x' is not a !!bool: leave out !!bool"),
    "int": ("a: !!int 1.5", "line 1: '1.5' is not a !!int"),
    "float": ("a: !!float x", "'x' is not a !!float"),
    "null": ("a: !!null x", "'x' is not a !!null"),
    "timestamp": ("a: !!timestamp x", "line 1: the tag !!timestamp is not used here: leave it out"),
    "binary": ("a: !!binary é", "the tag !!binary"),
    "set": ("!!set {a, b}", "the tag !!set"),
    "pairs": ("!!pairs [a: b]", "the tag !!pairs"),
    "omap": ("!!omap [a: b]", "the tag !!omap"),
    "Python": ("!!python/object/apply:os.system [ls]", "the tag !!python/object/apply:os.system"),
    "a tag of one's own": ("!x {a: b}", "the tag !x"),
    "a long tag": (f"!<{'x' * 5000}> a", "the tag x{60} is not"),
    "text tagged as a list": ("!!seq x", "the tag !!seq"),
    "a list tagged as text": ("!!str [x]", "the tag !!str"),
    # texts that are not YAML
    "brackets": ("a: 1\nb: [", "line [23]: is not YAML .*: check the indentation, brackets"),
    "tabs": ("a:\n\tb: 1", "line 2: is not YAML"),
    "two colons": ("a: b: c", "line 1: is not YAML .mapping values are not allowed"),
    "quotes": ("a: 'x", "line [12]: is not YAML"),
    "control characters": (
        "a: 1\nb: \x1b[2J",
        r"line 2: has the control character '\\x1b': remove",
    ),
    "NUL": ("\0", r"line 1: has the control character '\\x00'"),
    "version": ("%YAML 3.0\n---\na", "line 1: is not YAML"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(parser, monkeypatch, case):
    text, problem = REFUSED[case]
    monkeypatch.setattr(yaml_documents, "MAX_VALUES", VALUES_HERE)
    with pytest.raises(FormatError, match=problem) as found:
        read(text)
    message = str(found.value)
    assert message.startswith("c.yml")
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    "case", ["aliases", "merge keys", "mappings", "values", "lists", "documents"]
)
def test_refused_after_a_bounded_number_of_events(parser, monkeypatch, case):
    """The rest of the text is not even scanned."""
    count = 0
    parse = yaml.parse
    monkeypatch.setattr(yaml_documents, "MAX_VALUES", VALUES_HERE)

    def counted(*arguments, **options):
        nonlocal count
        for event in parse(*arguments, **options):
            count += 1
            yield event

    monkeypatch.setattr(yaml, "parse", counted)
    with pytest.raises(FormatError):
        read(REFUSED[case][0])
    assert count <= VALUES_HERE + 2 * MAX_DOCUMENTS + 10


def test_depth_and_values_at_the_limit():
    assert read("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    (numbers,) = read("[" + "1," * (MAX_VALUES - 1) + "]")
    assert len(numbers) == MAX_VALUES - 1


@given(st.text(alphabet="ab:-*&<!?|>'\"[]{},#~. \n\t01", max_size=40))
@settings(deadline=None, database=None, max_examples=200)
def test_any_text_is_read_or_refused(text):
    with suppress(FormatError):
        assert isinstance(read(text), list)
