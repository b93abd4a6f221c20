"""The configuration of a merge: mergekit's YAML, read into records. Nothing else is opened.

`load` reads YAML, which may have several documents, and `parse` reads one document. Every problem
is a FormatError that names the place in the document.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lbrx.errors import FormatError
from lbrx.files.formats import hub
from lbrx.files.formats.yaml_documents import package as yaml_package
from lbrx.files.formats.yaml_documents import parse_yaml
from lbrx.merging.config_fields import Fields, wrong

_MAX_BYTES = 1 << 20
_MAX_LAYERS = 100_000

Scalar = bool | int | float | str
Value = Scalar | tuple[Scalar, ...]
"""A number, or a gradient: numbers at equal distances over the layers of a slice."""


@dataclass(frozen=True)
class Filtered:
    """A value for the tensors whose name contains `filter`; None and "*" stand for all."""

    filter: str | None
    value: Value

    def matches(self, tensor: str) -> bool:
        return self.filter in (None, "*") or str(self.filter) in tensor


Setting = Value | tuple[Filtered, ...]
Parameters = Mapping[str, Setting]


@dataclass(frozen=True)
class ModelReference:
    """A model, and the LoRA adapter that is applied to it."""

    path: str
    lora: str | None = None

    def __str__(self) -> str:
        return self.path if self.lora is None else f"{self.path}+{self.lora}"


@dataclass(frozen=True)
class ModelEntry:
    """A model that takes part with all its layers."""

    model: ModelReference
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True)
class SliceSource:
    """Layers of a model, from the first of `layer_range` to before the second."""

    model: ModelReference
    layer_range: tuple[int, int]
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True)
class OutputSlice:
    """Consecutive layers of the merged model, from the same number of layers of each source."""

    sources: tuple[SliceSource, ...]
    base_model: ModelReference | None = None
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True)
class Body:
    """The layers of the merged model: from `models` with all their layers, or from `slices`."""

    models: tuple[ModelEntry, ...] = ()
    slices: tuple[OutputSlice, ...] = ()
    parameters: Parameters = field(default_factory=dict)

    def references(self) -> list[ModelReference]:
        """The models in the order of the configuration, each once."""
        named = [entry.model for entry in self.models]
        named += [source.model for part in self.slices for source in part.sources]
        return list(dict.fromkeys(named))


@dataclass(frozen=True)
class TokenRow:
    """Where a token's row of the embedding comes from: that token of `model`, another token of it
    by text or number, or zeros where `model` is None."""

    model: ModelReference | None
    token: str | None = None
    token_id: int | None = None


@dataclass(frozen=True)
class TokenSetting:
    """The row that a token's embedding comes from."""

    source: TokenRow | None = None
    """None takes the usual choice."""
    force: bool = False
    """Whether models that have the token get this row too."""


@dataclass(frozen=True)
class TokenizerSettings:
    """The `tokenizer` of a configuration: its vocabulary, and what its tokens get."""

    source: Literal["union", "base"] | ModelReference = "union"
    tokens: Mapping[str, TokenSetting] = field(default_factory=dict)
    pad_to_multiple_of: int | None = None


@dataclass(frozen=True)
class MergeConfig:
    """One merge."""

    method: str
    body: Body
    base_model: ModelReference | None = None
    parameters: Parameters = field(default_factory=dict)
    dtype: str | None = None
    out_dtype: str | None = None
    tokenizer: TokenizerSettings | None = None
    chat_template: str | None = None
    name: str | None = None
    """The name by which other documents of the same YAML refer to the result."""

    def references(self) -> list[ModelReference]:
        """The base model and the others in the order of the configuration, each once."""
        base = [] if self.base_model is None else [self.base_model]
        return list(dict.fromkeys([*base, *self.body.references()]))


def load(path: str | Path) -> tuple[list[dict[str, Any]], str]:
    """The documents of a YAML file, and its text."""
    try:
        with open(path, "rb") as file:  # perhaps a pipe, whose size nothing says
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            problem = f"{path} has more than {_MAX_BYTES:,} bytes"
            raise FormatError(f"{problem}, which is not the size of a merge's YAML")
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise FormatError(f"{path} is not UTF-8 text ({problem.reason}): give YAML") from None
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise FormatError(f"{path}: {reason}: give the YAML file of a merge") from problem
    return documents(text, str(path)), text


def documents(text: str, name: str) -> list[dict[str, Any]]:
    """The documents of a YAML text, each a mapping; `name` is for errors."""
    found = [document for document in parse_yaml(text, name) if document is not None]
    if not found:
        raise FormatError(f"{name} has no document: write merge_method and models into it")
    for document in found:
        if not isinstance(document, dict):
            kind = type(document).__name__
            raise FormatError(f"{name} has a document that is a {kind}: give keys and values")
    return found


def dump(document: Mapping[str, Any]) -> str:
    """A document as YAML; without PyYAML as JSON, which is YAML too."""
    yaml = yaml_package()
    try:
        if yaml is None:
            return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        text: str = yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True)
    except (
        TypeError,
        ValueError,
        RecursionError,
        getattr(yaml, "YAMLError", TypeError),
    ) as problem:
        reason = " ".join(str(problem).split())
        remedy = "give text, numbers, lists and dictionaries of these"
        raise FormatError(f"the configuration is not YAML ({reason:.200}): {remedy}") from None
    return text


def parse(document: Mapping[str, Any]) -> MergeConfig:
    """One merge. Raises FormatError for keys that do not exist, with the nearest that does."""
    fields = Fields(document, "")
    method = fields.text("merge_method")
    if method is None:
        raise FormatError("merge_method is missing: add a line like 'merge_method: linear'")
    result = MergeConfig(
        method=method,
        body=_body(fields, with_modules=True),
        base_model=_optional_model(fields, "base_model"),
        parameters=_parameters(fields),
        dtype=fields.text("dtype"),
        out_dtype=fields.text("out_dtype"),
        tokenizer=_tokenizer(fields),
        chat_template=fields.text("chat_template"),
        name=fields.text("name"),
    )
    fields.finish()
    return result


def parse_model(value: object, place: str = "model") -> ModelReference:
    """A model: 'path', 'path+lora', or {model: path, lora: path}."""
    if isinstance(value, str) and value:
        # A folder may have a plus sign in its name.
        path, plus, lora = ("", "", "") if os.path.exists(value) else value.rpartition("+")
        if plus and path and lora:
            return ModelReference(path, lora)
        return ModelReference(value)
    if not isinstance(value, Mapping):
        raise wrong(place, value, "a model: write a path, path+lora, or {model: path, lora: path}")
    fields = Fields(value, place)
    path = _path(fields.take("model"), f"{place}.model")
    lora = fields.take("lora")
    if fields.take("override_architecture") is not None:
        raise FormatError(
            f"{place}.override_architecture is not supported: change model_type in the config.json"
        )
    fields.finish()
    return ModelReference(path, None if lora is None else _path(lora, f"{place}.lora"))


def _path(value: object, place: str) -> str:
    if isinstance(value, Mapping):
        fields = Fields(value, place)
        path, revision = fields.take("path"), fields.take("revision")
        fields.finish()
        value = path if revision is None else f"{path}@{revision}"
        if revision is not None and hub.parse(value) is None:
            problem = f"{revision!r:.40} is a revision, which only models of the hub have"
            raise FormatError(f"{place}: {problem}: give organization/name or a local folder")
    if not isinstance(value, str) or not value:
        raise wrong(place, value, "a path")
    return value


def _optional_model(fields: Fields, key: str) -> ModelReference | None:
    value = fields.take(key)
    return None if value is None else parse_model(value, fields.place(key))


def _body(fields: Fields, with_modules: bool = False) -> Body:
    """Exactly one of models, slices and (at the top) modules."""
    keys = ("models", "slices", "modules") if with_modules else ("models", "slices")
    given = {key: value for key in keys if (value := fields.take(key)) is not None}
    if len(given) != 1:
        found = " and ".join(given) if given else "none of them"
        where = fields.place("") or "the configuration"
        raise FormatError(f"{where} has {found}: give exactly one of {', '.join(keys)}")
    ((key, value),) = given.items()
    place = fields.place(key)
    if key == "modules":
        return _modules(value, place)
    items = [Fields(item, f"{place}[{i}]") for i, item in enumerate(_list(value, place))]
    if key == "models":
        return Body(models=tuple(_entry(item) for item in items))
    return Body(slices=tuple(_slice(item) for item in items))


def _modules(value: object, place: str) -> Body:
    """mergekit names the parts of a multimodal model; lbrx merges the parts of a model alike."""
    modules = Fields(value, place)
    if len(modules.names) != 1:
        names = ", ".join(modules.names) or "none"
        raise FormatError(f"{place} has {names}: lbrx merges models of one module; give that one")
    name = modules.names[0]
    inside = Fields(modules.take(name), f"{place}.{name}")
    body = _body(inside)
    parameters = _parameters(inside)
    inside.finish()
    return Body(body.models, body.slices, parameters)


def _list(value: object, place: str) -> Sequence[object]:
    if not isinstance(value, list | tuple) or not value:
        raise wrong(place, value, "a list with at least one entry")
    return value


def _entry(fields: Fields) -> ModelEntry:
    result = ModelEntry(
        parse_model(fields.take("model"), fields.place("model")), _parameters(fields)
    )
    fields.finish()
    return result


def _slice(fields: Fields) -> OutputSlice:
    place = fields.place("sources")
    sources = _list(fields.take("sources"), place)
    fields.take("residual_weight")  # mergekit reads it and does not use it
    result = OutputSlice(
        tuple(_source(Fields(item, f"{place}[{i}]")) for i, item in enumerate(sources)),
        _optional_model(fields, "base_model"),
        _parameters(fields),
    )
    fields.finish()
    return result


def _source(fields: Fields) -> SliceSource:
    model = parse_model(fields.take("model"), fields.place("model"))
    value = fields.take("layer_range")
    match value:
        case [int(first), int(last)] if 0 <= first < last <= _MAX_LAYERS:
            result = SliceSource(model, (first, last), _parameters(fields))
        case _:
            raise wrong(fields.place("layer_range"), value, "a range of layers like [0, 8]")
    fields.finish()
    return result


def _parameters(fields: Fields) -> Parameters:
    value = fields.take("parameters")
    if value is None:
        return {}
    inside = Fields(value, fields.place("parameters"))
    return {name: setting(inside.take(name), inside.place(name)) for name in inside.names}


def setting(value: object, place: str) -> Setting:
    """A parameter's value: a number, a gradient, or values with filters."""
    if isinstance(value, Mapping):
        value = [value]
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        return tuple(_filtered(Fields(item, f"{place}[{i}]")) for i, item in enumerate(value))
    return _value(value, place)


def _value(value: object, place: str) -> Value:
    if isinstance(value, bool | int | float | str):
        return value
    items = value if isinstance(value, list | tuple) else ()
    if items and all(isinstance(item, bool | int | float | str) for item in items):
        return tuple(items)
    raise wrong(place, value, "a number, a list of numbers, or a list of {filter, value}")


def _filtered(fields: Fields) -> Filtered:
    name, value = fields.text("filter"), fields.take("value")
    fields.finish()
    return Filtered(name, _value(value, fields.place("value")))


def _tokenizer(fields: Fields) -> TokenizerSettings | None:
    short, value = fields.take("tokenizer_source"), fields.take("tokenizer")
    if short is not None and value is not None:
        raise FormatError("tokenizer_source and tokenizer are both given: give one of them")
    if short is not None:
        return TokenizerSettings(_tokenizer_source(short, "tokenizer_source"))
    if value is None:
        return None
    inside = Fields(value, "tokenizer")
    source = inside.take("source")
    tokens = inside.take("tokens")
    multiple = inside.take("pad_to_multiple_of")
    inside.finish()
    if multiple is not None and (type(multiple) is not int or not 1 <= multiple <= 1 << 20):
        raise wrong("tokenizer.pad_to_multiple_of", multiple, "a number of tokens, like 64")
    rows = Fields({} if tokens is None else tokens, "tokenizer.tokens")
    settings = {name: _token(rows, name) for name in rows.names}
    chosen = "union" if source is None else _tokenizer_source(source, "tokenizer.source")
    return TokenizerSettings(chosen, settings, multiple)


def _tokenizer_source(value: object, place: str) -> Literal["union", "base"] | ModelReference:
    if value == "union":
        return "union"
    return "base" if value == "base" else parse_model(value, place)


def _token(rows: Fields, token: str) -> TokenSetting:
    fields = Fields(rows.take(token), rows.place(token))
    source, force = fields.take("source"), fields.take("force")
    fields.finish()
    if not isinstance(force, bool | None):
        raise wrong(fields.place("force"), force, "true or false")
    row = None if source is None else _token_row(source, fields.place("source"))
    return TokenSetting(row, bool(force))


def _token_row(value: object, place: str) -> TokenRow:
    if not isinstance(value, Mapping) or "kind" not in value:
        return TokenRow(parse_model(value, place))
    fields = Fields(value, place)
    kind = fields.take("kind")
    if kind == "zero":
        fields.finish()
        return TokenRow(None)
    if kind != "model_token":
        raise wrong(f"{place}.kind", kind, "zero or model_token")
    model = parse_model(fields.take("model"), f"{place}.model")
    token, number = fields.text("token"), fields.take("token_id")
    fields.finish()
    if (token is None) == (number is None):
        raise FormatError(f"{place} has token and token_id, or neither: give one of them")
    if number is not None and (type(number) is not int or number < 0):
        raise wrong(f"{place}.token_id", number, "the number of a token")
    return TokenRow(model, token, number)
