"""The files beside a merged model's weights: its tokenizer and its chat template."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError
from lbrx.files.formats.checks import parse_json
from lbrx.files.formats.recipe import ComputedModel
from lbrx.merging.chat_templates import TEMPLATES
from lbrx.merging.config import MergeConfig
from lbrx.merging.config_fields import suggestion
from lbrx.merging.parent_models import ParentModel

_SETTINGS = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model")


def tokenizer_companions(
    config: MergeConfig,
    models: Sequence[ParentModel],
    files: Mapping[str, bytes],
    notes: list[str],
) -> dict[str, bytes]:
    """The tokenizer's files with the chat template that the configuration asks for.

    Raises FormatError for a template that is neither text of one nor the name of one.
    """
    if config.chat_template is None:
        return dict(files)
    if not any(name in files for name in _TOKENIZERS):
        notes.append("there is no tokenizer: the chat template is not written")
        return dict(files)
    template = _chosen(config.chat_template, models)
    if template is None:
        notes.append("no model has a chat template: chat_template: auto has no effect")
        return dict(files)
    settings = _settings(files)
    settings["chat_template"] = template
    result = {name: content for name, content in files.items() if name != _TEMPLATE}
    text = json.dumps(settings, ensure_ascii=False, indent=2) + "\n"
    return {**result, _SETTINGS: text.encode(), _TEMPLATE: template.encode()}


def _chosen(wanted: str, models: Sequence[ParentModel]) -> str | None:
    if wanted == "auto":
        found = Counter(filter(None, (_template_of(model.companions) for model in models)))
        return found.most_common(1)[0][0] if found else None
    if wanted in TEMPLATES:
        return TEMPLATES[wanted]
    if "{" in wanted:
        return wanted
    known = suggestion(wanted, ["auto", *TEMPLATES])
    raise FormatError(f"chat_template {wanted!r:.60} is not the text or name of a template{known}")


def _template_of(files: Mapping[str, bytes]) -> str | None:
    if _TEMPLATE in files:
        return files[_TEMPLATE].decode(errors="replace").strip()
    template = _settings(files).get("chat_template")
    return template.strip() if isinstance(template, str) else None


def _settings(files: Mapping[str, bytes]) -> dict[str, Any]:
    value = parse_json(Path(_SETTINGS), files.get(_SETTINGS, b"{}"))
    return value if isinstance(value, dict) else {}


def staged(model: ComputedModel, donor: ParentModel) -> ComputedModel:
    """The model with a tokenizer that can be opened: the donor's file if nothing has changed, or a
    copy in a temporary folder that is removed with the model."""
    wanted = {name: content for name, content in model.companions.items() if name in _TOKENIZERS}
    if not wanted:
        return model
    names = (*_TOKENIZERS, _SETTINGS, _TEMPLATE)
    same = all(model.companions.get(name) == donor.companions.get(name) for name in names)
    if same and donor.files.tokenizer is not None and not isinstance(donor.files, ComputedModel):
        return replace(model, tokenizer=donor.files.tokenizer)
    folder = Path(tempfile.mkdtemp(prefix="lbrx-tokenizer-"))
    for name in names:
        if name in model.companions:
            (folder / name).write_bytes(model.companions[name])
    result = replace(model, tokenizer=folder / next(n for n in _TOKENIZERS if n in wanted))
    weakref.finalize(result, shutil.rmtree, folder, True)
    return result
