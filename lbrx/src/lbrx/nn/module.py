"""`Module`: parameters and other modules as attributes, which together are a tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import DtypeLike
from lbrx.errors import FormatError, ShapeError
from lbrx.tensors.core import Tensor
from lbrx.trees import same_sequence, tree_flatten, tree_unflatten

Tree = Any
Path = str | os.PathLike[str]


class Module:
    """The base class of layers and models, with MLX's names.

    Attributes that are tensors are parameters, and attributes that are modules, or lists, tuples
    and dictionaries of both, are parts; names that begin with an underscore are neither. A subclass
    computes in `__call__`.

    >>> class Affine(lbrx.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.scale = lbrx.ones(3)
    ...         self.inner = lbrx.nn.Linear(3, 2)
    ...     def __call__(self, x):
    ...         return self.inner(x * self.scale)
    >>> [name for name, _ in lbrx.tree_flatten(Affine().parameters())]
    ['scale', 'inner.weight', 'inner.bias']
    """

    def __init__(self) -> None:
        self._frozen: set[str] = set()
        self._training = True

    @property
    def training(self) -> bool:
        """Whether dropout drops and batch norm uses the statistics of the batch."""
        return self._training

    # Trees

    def children(self) -> dict[str, Any]:
        """The attributes that are or hold modules, by name."""
        return {k: v for k, v in self._parts().items() if any(_modules_in(v))}

    def parameters(self) -> dict[str, Any]:
        """All tensors of the module and its parts, as a tree."""
        return _selected(self, lambda module, name: True)  # type: ignore[no-any-return]

    def trainable_parameters(self) -> dict[str, Any]:
        """The tensors that are not frozen, as a tree."""
        return _selected(  # type: ignore[no-any-return]
            self, lambda module, name: name not in module._frozen
        )

    @property
    def state(self) -> Module:
        """What `lbrx.compile(inputs=...)` takes of a module: the module itself."""
        return self

    def tree(self) -> dict[str, Any]:
        """The module as a tree: its parameters."""
        return self.parameters()

    def update(self, parameters: Mapping[str, Any], strict: bool = True) -> Self:
        """Replace parameters by those of a tree, which may be a part of the module's. Returns the
        module. A name that it does not have raises KeyError unless strict=False."""
        _update(self, parameters, strict, type(self).__name__)
        return self

    def update_modules(self, modules: Mapping[str, Any]) -> Self:
        """Replace parts by the modules of a tree. Returns the module."""
        for name, value in modules.items():
            own = getattr(self, name)
            if isinstance(value, Mapping) and isinstance(own, Module):
                own.update_modules(value)
            elif isinstance(value, list) and isinstance(own, list):
                for i, item in enumerate(value):
                    if isinstance(item, Module):
                        own[i] = item
                    elif isinstance(item, Mapping) and item:
                        own[i].update_modules(item)
            else:
                setattr(self, name, value)
        return self

    def modules(self) -> list[Module]:
        """The module and all parts at any depth."""
        return [module for _, module in self.named_modules()]

    def named_modules(self, prefix: str = "") -> list[tuple[str, Module]]:
        """The module and all parts with their paths; that of the module is the prefix."""
        found: list[tuple[str, Module]] = [(prefix, self)]
        for name, value in self._parts().items():
            start = f"{prefix}.{name}" if prefix else name
            for path, module in _named_modules_in(value, start):
                found += module.named_modules(path)
        return found

    def leaf_modules(self) -> dict[str, Any]:
        """The parts that have no parts themselves, as a tree."""
        return {name: _leaf_modules_in(value) for name, value in self.children().items()}

    def _parts(self) -> dict[str, Any]:
        """The attributes that may hold parameters."""
        return {
            name: value
            for name, value in vars(self).items()
            if not name.startswith("_") and isinstance(value, Tensor | Module | list | tuple | dict)
        }

    # Changes of all parameters or parts

    def apply(
        self,
        function: Callable[[Tensor], Tensor],
        filter_fn: Callable[[Module, str, Any], bool] | None = None,
    ) -> Self:
        """Replace each parameter by the result of a function, as for another dtype. Returns the
        module. `filter_fn(module, name, value)` says which ones."""
        for module in self.modules():
            for name, value in module._parts().items():
                if isinstance(value, Tensor) and (
                    filter_fn is None or filter_fn(module, name, value)
                ):
                    setattr(module, name, function(value))
        return self

    def apply_to_modules(self, function: Callable[[str, Module], Any]) -> Self:
        """Call a function with the path of each part and the part. Returns the module."""
        for path, module in self.named_modules():
            function(path, module)
        return self

    def set_dtype(
        self,
        dtype: DtypeLike,
        predicate: Callable[[dt.Dtype], bool] = lambda own: own.is_float,
    ) -> Self:
        """Cast the parameters whose dtype the predicate accepts, floating ones by default."""
        wanted = dt.parse(dtype)
        return self.apply(lambda x: x.astype(wanted) if predicate(x.dtype) else x)

    def freeze(
        self, *, recurse: bool = True, keys: str | Sequence[str] | None = None, strict: bool = False
    ) -> Self:
        """Take parameters out of `trainable_parameters`: all, or those named by `keys`. Returns the
        module. With strict=True a key that a module does not have raises KeyError."""
        return self._set_frozen(True, recurse, keys, strict)

    def unfreeze(
        self, *, recurse: bool = True, keys: str | Sequence[str] | None = None, strict: bool = False
    ) -> Self:
        """The opposite of `freeze`."""
        return self._set_frozen(False, recurse, keys, strict)

    def _set_frozen(
        self, frozen: bool, recurse: bool, keys: str | Sequence[str] | None, strict: bool
    ) -> Self:
        names = None if keys is None else {keys} if isinstance(keys, str) else set(keys)
        for module in self.modules() if recurse else [self]:
            own = {k for k, v in module._parts().items() if not _holds_only_modules(v)}
            if names is not None and strict and (missing := sorted(names - own)):
                raise KeyError(f"{type(module).__name__} has no parameter {missing[0]}")
            chosen = own if names is None else own & names
            module._frozen = module._frozen | chosen if frozen else module._frozen - chosen
            if not frozen and names is None:
                module._after_unfreeze()
        return self

    def _after_unfreeze(self) -> None:
        """For modules with tensors that are never trained."""

    def train(self, mode: bool = True) -> Self:
        """Set `training` of the module and all parts. Returns the module."""
        for module in self.modules():
            module._training = mode
        return self

    def eval(self) -> Self:
        """`train(False)`: for use instead of training."""
        return self.train(False)

    # Files

    def save_weights(self, file: Path) -> None:
        """Write the parameters to a file, by their paths: safetensors, NumPy (.npz) or GGUF."""
        from lbrx.files.stored.load_and_save import save

        save(file, dict(tree_flatten(self.parameters())))

    def load_weights(
        self, file_or_weights: Path | Iterable[tuple[str, Tensor]], strict: bool = True
    ) -> Self:
        """Replace parameters by those of a file, or of pairs of paths and tensors. Returns the
        module.

        Names and shapes must be those of the parameters: other names raise FormatError, unless
        strict=False, and other shapes ShapeError.
        """
        if isinstance(file_or_weights, str | os.PathLike):
            from lbrx.files.stored.load_and_save import load

            weights = dict(load(file_or_weights))
        else:
            weights = dict(file_or_weights)
        own = dict(tree_flatten(self.parameters()))
        if strict and weights.keys() != own.keys():
            missing, more = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
            raise FormatError(
                f"the weights lack {', '.join(missing[:5]) or 'none'} and have "
                f"{', '.join(more[:5]) or 'none'} besides: give those of this module, or "
                "strict=False"
            )
        known = {path: weights[path] for path in own if path in weights}
        for path, value in known.items():
            if value.shape != own[path].shape:
                raise ShapeError(f"{path} has shape {value.shape} instead of {own[path].shape}")
        device = next((x.device for x in own.values()), None)
        moved = {path: x.to_device(device) if device else x for path, x in known.items()}
        return self.update(tree_unflatten(moved)) if moved else self

    # Text

    def _extra_repr(self) -> str:
        """What the text says about the module itself."""
        return ""

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}({self._extra_repr()}"]
        for name, value in self.children().items():
            for path, module in _named_modules_in(value, name):
                text = repr(module).replace("\n", "\n  ")
                lines.append(f"  ({path}): {text}")
        return lines[0] + ")" if len(lines) == 1 else "\n".join([*lines, ")"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __call__: define it")


def _modules_in(value: Any) -> Iterable[Module]:
    return (module for _, module in _named_modules_in(value, ""))


def _named_modules_in(value: Any, path: str) -> list[tuple[str, Module]]:
    """The nearest modules in a value, with their paths."""
    if isinstance(value, Module):
        return [(path, value)]
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return []
    return [found for key, item in items for found in _named_modules_in(item, f"{path}.{key}")]


def _leaf_modules_in(value: Any) -> Any:
    if isinstance(value, Module):
        return value.leaf_modules() or value
    if isinstance(value, Mapping):
        return {key: _leaf_modules_in(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_leaf_modules_in(item) for item in value]
    return {}


def _holds_only_modules(value: Any) -> bool:
    """Whether freezing a name says nothing about an attribute: its modules have names of their
    own."""
    return isinstance(value, Module) or (
        isinstance(value, list | tuple | dict)
        and any(_modules_in(value))
        and not _tensors_in(value)
    )


def _tensors_in(value: Any) -> bool:
    """Whether a list or dictionary holds tensors beside its modules."""
    items = value.values() if isinstance(value, dict) else value
    return any(
        isinstance(item, Tensor) or (isinstance(item, list | tuple | dict) and _tensors_in(item))
        for item in items
    )


def _selected(value: Any, chosen: Callable[[Module, str], bool]) -> Any:
    """The tree of the chosen parameters of a module, list or dictionary."""
    if isinstance(value, Module):
        found = {}
        for name, part in value._parts().items():
            if isinstance(part, Tensor):
                if chosen(value, name):
                    found[name] = part
            elif isinstance(part, Module) or _has_any(part):
                found[name] = _selected(part, chosen)
        return found
    if isinstance(value, Mapping):
        return {key: _selected(item, chosen) for key, item in value.items() if _has_any(item)}
    if isinstance(value, list | tuple):
        return same_sequence(value, [_selected(item, chosen) for item in value])
    return value if isinstance(value, Tensor) else {}


def _has_any(value: Any) -> bool:
    """Whether a value is or holds a tensor or a module."""
    if isinstance(value, Mapping):
        return any(map(_has_any, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_any, value))
    return isinstance(value, Tensor | Module)


def _update(target: Any, values: Any, strict: bool, path: str) -> None:
    """Set the tensors of a module, list or dictionary to those of a tree."""
    items = values.items() if isinstance(values, Mapping) else enumerate(values)
    for key, value in items:
        here = f"{path}.{key}"
        own = _part(target, key, here, strict)
        if own is None:
            continue
        if isinstance(value, Tensor):
            _put(target, key, value)
        elif isinstance(own, tuple):
            parts = list(own)
            _update(parts, value, strict, here)
            _put(target, key, same_sequence(own, parts))
        elif isinstance(value, Mapping | list | tuple):
            _update(own, value, strict, here)


def _part(target: Any, key: Any, path: str, strict: bool) -> Any:
    """What a module, list or dictionary has under a key."""
    own = None
    if isinstance(target, Module):
        own = vars(target).get(key)
    elif isinstance(target, Mapping):
        own = target.get(key)
    elif isinstance(target, list) and 0 <= int(key) < len(target):
        own = target[int(key)]
    if own is None and strict:
        raise KeyError(f"there is no parameter {path}: give names of the module, or strict=False")
    return own


def _put(target: Any, key: Any, value: Any) -> None:
    if isinstance(target, Module):
        vars(target)[key] = value
    else:
        target[int(key) if isinstance(target, list) else key] = value
