"""Which tensors of a model belong to which layer, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lbrx.errors import FormatError
from lbrx.merging.parent_models import ParentModel

# Llama and most others have `layers`, GPT-2 and Falcon `h`, MPT and Bloom `blocks`.
_IN_LAYER = re.compile(
    r"(?P<stack>(?:.*\.)?(?:layers|h|blocks))\.(?P<number>\d{1,6})\.(?P<rest>.+)"
)
# Encoders of images and sound have layers of their own, which slices do not mean.
_OTHER_STACK = re.compile(r"vision|visual|audio|image")
_LAST = re.compile(r"(^|\.)(lm_head|norm|ln_f|final_layernorm|final_layer_norm)\.[^.]+$")
# Computed from the configuration; old checkpoints store it.
_COMPUTED = re.compile(r"(.*\.)?rotary_emb\.inv_freq")
_VOCABULARY = re.compile(r"(.*\.)?(embed_tokens|lm_head|wte|word_embeddings|embed_in|embed_out)\.")


@dataclass(frozen=True)
class LayerNames:
    """The names of a model's tensors by place."""

    stack: str
    """The name of the list of layers, such as `model.layers`; empty if there are none."""
    layers: tuple[tuple[str, ...], ...]
    """For each layer the rest of the names of its tensors."""
    before: tuple[str, ...]
    """Tensors that are not in a layer: embeddings, and all parts besides the language model."""
    after: tuple[str, ...]
    """The last norm and the output projection."""

    def name(self, layer: int, rest: str) -> str:
        return f"{self.stack}.{layer}.{rest}"


def layer_names(model: ParentModel) -> LayerNames:
    """Sort a model's tensors. Raises FormatError if a layer in the middle is missing."""
    names = [name for name in model.recipes if not _COMPUTED.fullmatch(name)]
    stacks: dict[str, dict[int, list[str]]] = {}
    for name in names:
        found = _IN_LAYER.fullmatch(name)
        if found and not _OTHER_STACK.search(found["stack"]):
            stacks.setdefault(found["stack"], {}).setdefault(int(found["number"]), []).append(
                found["rest"]
            )
    stack = max(stacks, key=lambda name: len(stacks[name]), default="")
    layers = stacks.get(stack, {})
    if missing := set(range(max(layers, default=-1) + 1)) - layers.keys():
        raise FormatError(f"{model} has no tensors of layer {min(missing)}: it is incomplete")
    inside = {f"{stack}.{number}.{rest}" for number, rests in layers.items() for rest in rests}
    outside = [name for name in names if name not in inside]
    return LayerNames(
        stack,
        tuple(tuple(layers[number]) for number in range(len(layers))),
        tuple(name for name in outside if not _LAST.search(name)),
        tuple(name for name in outside if _LAST.search(name)),
    )


def has_vocabulary(name: str) -> bool:
    """Whether the rows of a tensor are tokens: embeddings and the output projection."""
    return _VOCABULARY.match(name) is not None


def embedding_name(names: Iterable[str]) -> str | None:
    """The input embedding among a model's tensors."""
    found = (name for name in names if has_vocabulary(name) and name.endswith(".weight"))
    return next((n for n in found if not re.search(r"lm_head|embed_out", n)), None)


def rebuilt_lists(config: Mapping[str, object], layers: int, order: list[int]) -> dict[str, object]:
    """The settings that have a value for each layer, in the order of the merged model's layers."""
    return {
        key: [value[number] for number in order]
        for key, value in config.items()
        if isinstance(value, list) and len(value) == layers and key.endswith(("_types", "_layers"))
    }
