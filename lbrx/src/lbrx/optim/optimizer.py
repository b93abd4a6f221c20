"""The base class of optimizers: a state for each parameter, a step count and a learning rate."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lbrx.arrays import dtype as dt
from lbrx.errors import FormatError
from lbrx.tensors.core import Tensor
from lbrx.tensors.creation import tensor
from lbrx.trees import leaves, tree_flatten, tree_map

Schedule = Callable[[Tensor], Tensor]
Rate = float | Schedule
State = dict[str, Any]


class Optimizer:
    """Updates parameters by gradients, with MLX's names.

    `state` is a tree of tensors: the step, the learning rate, and for each parameter what the
    optimizer keeps of it. A learning rate is a number, or a function of the step (a tensor).
    """

    def __init__(self, learning_rate: Rate = 0.0) -> None:
        self._schedule = learning_rate if callable(learning_rate) else None
        self._rate = 0.0 if callable(learning_rate) else float(learning_rate)
        self._state: State = {}

    # What subclasses define

    def init_single(self, parameter: Tensor) -> dict[str, Tensor]:
        """What is kept of a parameter, before the first step."""
        return {}

    def apply_single(
        self, gradient: Tensor, parameter: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The new value of a parameter, and what is kept of it."""
        raise NotImplementedError(f"{type(self).__name__} has no apply_single: define it")

    # The public part

    def update(self, model: Any, gradients: Any) -> None:
        """Update the parameters of a module that are in a tree of gradients."""
        model.update(self.apply_gradients(gradients, model))

    def apply_gradients(self, gradients: Any, parameters: Any) -> Any:
        """The updated parameters, in the form of the gradients; the state is updated."""
        if hasattr(parameters, "tree"):
            parameters = parameters.tree()
        own = dict(tree_flatten(parameters))
        pairs = [(path, g) for path, g in tree_flatten(gradients) if isinstance(g, Tensor)]
        if missing := [path for path, _ in pairs if path not in own]:
            raise KeyError(f"there is a gradient of {missing[0]!r} and no such parameter")
        self._prepare([own[path] for path, _ in pairs])
        known = self._state.setdefault("parameters", {})
        made: dict[str, Tensor] = {}
        for path, gradient in pairs:
            kept = known[path] if path in known else self.init_single(own[path])
            made[path], known[path] = self.apply_single(gradient, own[path], kept)
        rest = iter(made.values())
        return tree_map(lambda g: next(rest) if isinstance(g, Tensor) else g, gradients)

    def init(self, parameters: Any) -> None:
        """Make the state of a tree of parameters, which the first step does otherwise."""
        own = [(path, x) for path, x in tree_flatten(parameters) if isinstance(x, Tensor)]
        self._begin([x for _, x in own])
        self._state["parameters"] = {path: self.init_single(x) for path, x in own}

    def tree(self) -> State:
        """The optimizer as a tree: its state."""
        return self._state

    @property
    def state(self) -> State:
        """The tree of the step, the learning rate and what is kept of parameters."""
        return self._state

    @state.setter
    def state(self, value: State) -> None:
        # The same dictionary: a compiled function may have been given it.
        new = dict(value)
        self._state.clear()
        self._state.update(new)

    @property
    def step(self) -> Tensor:
        """How many steps there were, an integer scalar."""
        return self._state["step"] if "step" in self._state else tensor(0, device="cpu")

    @property
    def learning_rate(self) -> Tensor | float:
        """The learning rate, a scalar tensor from the first step on."""
        found: Tensor | float = self._state.get("learning_rate", self._rate)
        return found

    @learning_rate.setter
    def learning_rate(self, value: float | Tensor) -> None:
        self._rate, self._schedule = float(value), None
        if "learning_rate" in self._state:
            old = self._state["learning_rate"]
            self._state["learning_rate"] = tensor(self._rate, old.dtype, old.device)

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, bit for bit."""
        from lbrx.files.stored.load_and_save import save

        flat = {k: x for k, x in self._flat_state().items() if isinstance(x, Tensor)}
        save(path, flat)

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Read a state that `save_state` wrote. Another file raises FormatError."""
        from lbrx.files.stored.load_and_save import load

        stored = dict(load(path))
        if "step" not in stored:
            raise FormatError(
                f"{os.fspath(path)!r} is not the state of an optimizer: it has no step"
            )
        place = next((x.device for x in leaves(self._state) if isinstance(x, Tensor)), None)
        self.state = self._unflat_state(
            {k: x.to_device(place) if place else x for k, x in stored.items()}
        )

    # Parts

    def _flat_state(self) -> dict[str, Any]:
        own = {k: x for k, x in self._state.items() if k != "parameters"}
        for path, kept in self._state.get("parameters", {}).items():
            own |= {f"parameters/{path}/{name}": x for name, x in kept.items()}
        return own

    def _unflat_state(self, flat: Mapping[str, Tensor]) -> State:
        state: State = {"parameters": {}}
        for key, value in flat.items():
            if key.startswith("parameters/"):
                _, path, name = key.split("/")
                state["parameters"].setdefault(path, {})[name] = value
            else:
                state[key] = value
        return state

    def _begin(self, parameters: Sequence[Tensor]) -> None:
        device = parameters[0].device if parameters else "cpu"
        wide = dt.float64 if device == "cpu" else dt.float32
        self._state["step"] = tensor(0, dt.int64, device)
        self._state["learning_rate"] = tensor(self._rate, wide, device)

    def _prepare(self, parameters: Sequence[Tensor]) -> None:
        """Count a step and compute its learning rate."""
        if "step" not in self._state:
            self._begin(parameters)
        place = parameters[0].device if parameters else self._state["step"].device
        if self._state["step"].device != place:  # a state that was loaded
            self.state = tree_map(lambda x: x.to_device(place), self._state)
        step, old = self._state["step"], self._state["learning_rate"]
        if self._schedule is not None:
            made = self._schedule(step)
            value = made if isinstance(made, Tensor) else tensor(made, device=step.device)
            self._state["learning_rate"] = value.astype(old.dtype)
        self._state["step"] = step + 1

    def _rate_of(self, gradient: Tensor) -> Tensor:
        """The learning rate in the dtype of a gradient."""
        rate: Tensor = self._state["learning_rate"]
        return rate.to_device(gradient.device).astype(gradient.dtype)


class MultiOptimizer(Optimizer):
    """Several optimizers, each for the parameters that its filter takes first.

    A filter is a function of a parameter's path and gradient; the last optimizer takes the rest.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], filters: Sequence[Callable[[str, Tensor], bool]] = ()
    ) -> None:
        super().__init__()
        if len(filters) != len(optimizers) - 1:
            raise ValueError(
                f"{len(optimizers)} optimizers and {len(filters)} filters: give one filter less"
            )
        self.optimizers = list(optimizers)
        self._filters = list(filters)

    def _split(self, tree: Any) -> list[Any]:
        """A tree for each optimizer, with the leaves that are its own."""
        parts: list[list[tuple[str, Tensor]]] = [[] for _ in self.optimizers]
        for path, value in tree_flatten(tree):
            if isinstance(value, Tensor):
                fits = (i for i, each in enumerate(self._filters) if each(path, value))
                parts[next(fits, len(self._filters))].append((path, value))
        return [dict(part) for part in parts]

    def init(self, parameters: Any) -> None:
        for optimizer, part in zip(self.optimizers, self._split(parameters), strict=True):
            optimizer.init(part)

    def apply_gradients(self, gradients: Any, parameters: Any) -> Any:
        own = dict(tree_flatten(parameters))
        made: dict[str, Tensor] = {}
        for optimizer, part in zip(self.optimizers, self._split(gradients), strict=True):
            if part:
                made |= optimizer.apply_gradients(part, {path: own[path] for path in part})
        paths = iter(path for path, g in tree_flatten(gradients) if isinstance(g, Tensor))
        return tree_map(lambda g: made[next(paths)] if isinstance(g, Tensor) else g, gradients)

    def tree(self) -> State:
        return self.state

    @property
    def state(self) -> State:
        """The states of the optimizers."""
        return {"states": [each.state for each in self.optimizers]}

    @state.setter
    def state(self, value: State) -> None:
        for optimizer, own in zip(self.optimizers, value["states"], strict=True):
            optimizer.state = own

    @property
    def learning_rate(self) -> Tensor | float:
        """The learning rate of the first optimizer."""
        return self.optimizers[0].learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float | Tensor) -> None:
        for optimizer in self.optimizers:
            optimizer.learning_rate = value

    def _flat_state(self) -> dict[str, Any]:
        own = [each._flat_state() for each in self.optimizers]
        return {f"{i}:{k}": x for i, part in enumerate(own) for k, x in part.items()} | {
            "step": self.optimizers[0].step
        }

    def _unflat_state(self, flat: Mapping[str, Tensor]) -> State:
        parts: list[dict[str, Tensor]] = [{} for _ in self.optimizers]
        for key, value in flat.items():
            place, _, rest = key.partition(":")
            if rest:
                parts[int(place)][rest] = value
        pairs = zip(self.optimizers, parts, strict=True)
        return {"states": [optimizer._unflat_state(part) for optimizer, part in pairs]}

    def load_state(self, path: str | os.PathLike[str]) -> None:
        from lbrx.files.stored.load_and_save import load

        self.state = self._unflat_state(dict(load(path)))
