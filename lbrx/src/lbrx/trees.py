"""Trees: values in lists, tuples, dictionaries and modules, nested in any way.

A module is what has the methods `tree()`, its children by name, and `update(tree)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """A tree of the results of a function on each leaf, and on the leaves at the same places of
    other trees.

    >>> lbrx.tree_map(lambda x, y: x + y, {"a": [1, 2]}, {"a": [10, 20]})
    {'a': [11, 22]}
    """
    if hasattr(tree, "tree"):
        tree, rest = tree.tree(), tuple(r.tree() if hasattr(r, "tree") else r for r in rest)
    if isinstance(tree, Mapping):
        return {k: tree_map(function, v, *(r[k] for r in rest)) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        items = [tree_map(function, item, *(r[i] for r in rest)) for i, item in enumerate(tree)]
        return same_sequence(tree, items)
    return function(tree, *rest)


def same_sequence(value: Any, items: list[Any]) -> Any:
    """The items as the same type as the value: list, tuple or named tuple."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def leaves(tree: Any) -> Iterator[Any]:
    """The leaves in order."""
    return (leaf for _, leaf in tree_flatten(tree))


def tree_flatten(tree: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """The leaves with their paths, keys and indices joined by dots.

    >>> lbrx.tree_flatten({"a": [1, 2], "b": {"c": 3}})
    [('a.0', 1), ('a.1', 2), ('b.c', 3)]
    """
    if hasattr(tree, "tree"):
        tree = tree.tree()
    if isinstance(tree, Mapping):
        children = list(tree.items())
    elif isinstance(tree, list | tuple):
        children = list(enumerate(tree))
    else:
        return [(prefix, tree)]
    found: list[tuple[str, Any]] = []
    for key, child in children:
        found += tree_flatten(child, f"{prefix}.{key}" if prefix else str(key))
    return found


def tree_unflatten(items: Sequence[tuple[str, Any]] | Mapping[str, Any]) -> Any:
    """The tree of leaves with paths: the inverse of `tree_flatten`. Where all keys are numbers it
    has a list.

    >>> lbrx.tree_unflatten([("a.0", 1), ("a.1", 2)])
    {'a': [1, 2]}
    """
    pairs = list(items.items() if isinstance(items, Mapping) else items)
    if len(pairs) == 1 and pairs[0][0] == "":
        return pairs[0][1]
    children: dict[str, list[tuple[str, Any]]] = {}
    for path, leaf in pairs:
        key, _, rest = path.partition(".")
        children.setdefault(key, []).append((rest, leaf))
    built = {key: tree_unflatten(each) for key, each in children.items()}
    if built and all(key.isdigit() for key in built):
        return [built[key] for key in sorted(built, key=int)]
    return built


def set_tree(target: Any, values: Any) -> None:
    """Put the leaves of a tree into modules, dictionaries and lists, which stay the same objects.
    None has no leaves."""
    if target is None:
        return
    if hasattr(target, "parameters"):
        target.update(values)
        return
    if hasattr(target, "tree"):
        target = target.tree()
    if isinstance(target, dict):
        for key in [key for key in target if key not in values]:
            del target[key]
    pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
    for key, value in pairs:
        own = target.get(key) if isinstance(target, dict) else target[key]
        if isinstance(own, dict | list) or hasattr(own, "tree"):
            set_tree(own, value)
        else:
            target[key] = value
