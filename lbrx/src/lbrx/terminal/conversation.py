"""A conversation with a language model, and its commands, which are lines such as /help."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from lbrx.errors import LbrxError
from lbrx.models import LanguageModel, Stream
from lbrx.models.generation import OptionKeywords
from lbrx.terminal.arguments import nearest
from lbrx.terminal.message_input import MessageInput
from lbrx.terminal.problems import report

COMMANDS = {
    "/help": "show this list",
    "/regenerate": "answer the last message again",
    "/reset": "forget all messages but the system message",
    "/save FILE": "write the messages to a new JSON file",
    "/exit": "leave, as /quit and Ctrl-D do",
}
HINT = "/help lists the commands, Ctrl-C ends an answer, Ctrl-D the conversation"
_COMMAND = re.compile(r"(?P<name>/\w[\w-]*)(?:[ \t]+(?P<argument>.*?))?\s*")  # not /usr/bin


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


class Conversation:
    """Messages and answers. `show` prints an answer while it is generated and returns it."""

    def __init__(
        self,
        model: LanguageModel,
        system: str | None,
        options: OptionKeywords,
        show: Callable[[Stream], str],
    ) -> None:
        self.model = model
        self.status = 0
        self._options = options
        self._show = show
        self._first = [message("system", system)] if system else []
        self._messages = list(self._first)
        self._before: list[dict[str, str]] = []  # the messages before the last one of the user
        self._text: str | None = None  # the last message of the user
        self._repetitions = 0  # of the last message

    def run(self, given: MessageInput) -> int:
        """Answer messages until the input ends, and return the exit status. On a terminal, Ctrl-C
        ends an answer or drops a line; elsewhere it ends an answer or the conversation."""
        while True:
            try:
                text = given.read()
            except EOFError:
                if given.is_terminal:
                    print(file=sys.stderr)
                return self.status
            except KeyboardInterrupt:
                if not given.is_terminal:
                    return self.status
                print(file=sys.stderr)
                report(HINT)
                continue
            # Elsewhere a text, which may be from anyone, writes no files.
            found = _COMMAND.fullmatch(text) if given.is_terminal else None
            if found is None:
                self.answer(text.strip())
            elif found["name"] in ("/exit", "/quit"):
                return self.status
            else:
                self._obey(found["name"], found["argument"] or "")

    def answer(self, text: str) -> None:
        """Answer a message; an empty one is ignored."""
        if text:
            self._before, self._text, self._repetitions = self._messages, text, 0
            self._answer_last()

    def _answer_last(self) -> None:
        assert self._text is not None
        options = self._options.copy()
        seed = options.get("seed")
        if seed is not None:
            options["seed"] = seed + self._repetitions
        asked, said = [*self._before, message("user", self._text)], ""
        try:
            asked = self._fitting(asked)
            said = self._show(self.model.stream(asked, **options))
        except LbrxError as problem:
            report(str(problem))
            self.status = 1
        except KeyboardInterrupt:  # before the first part of the answer
            print()
        if said:
            self._messages = [*asked, message("assistant", said)]

    def _obey(self, name: str, argument: str) -> None:
        """Carry out a command. What is wrong with it is one line."""
        try:
            match name, argument:
                case "/save", _:
                    self._save(argument)
                case "/help" | "/regenerate" | "/reset", str() if argument:
                    raise LbrxError(f"{name} takes no argument: leave {argument} out")
                case "/help", _:
                    width = max(map(len, COMMANDS))
                    lines = (f"{usage:<{width}}  {text}" for usage, text in COMMANDS.items())
                    print("\n".join(lines), file=sys.stderr)
                case "/regenerate", _:
                    self._regenerate()
                case "/reset", _:
                    self._messages, self._before, self._text = list(self._first), [], None
                    report("the messages are forgotten")
                case _:
                    raise LbrxError(_unknown(name))
        except LbrxError as problem:
            report(str(problem))

    def _regenerate(self) -> None:
        if self._text is None:
            raise LbrxError("there is no message to answer again: write one first")
        if not self._options.get("temperature"):
            report("--temperature is 0, which gives the same answer again")
        self._repetitions += 1
        self._answer_last()

    def _save(self, name: str) -> None:
        if not name:
            raise LbrxError("/save needs the name of a file: give /save FILE")
        if self._messages == self._first:
            raise LbrxError("there is nothing to save: write a message first")
        path = Path(os.path.expanduser(name))
        text = json.dumps(self._messages, indent=2, ensure_ascii=False)
        try:
            _write_new(path, f"{text}\n")
        except FileExistsError:
            raise LbrxError(f"{path} exists: give another name") from None
        except (OSError, ValueError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else problem
            raise LbrxError(f"{path} cannot be written, {reason}: give another name") from None
        report(f"{len(self._messages)} messages are in {path}")

    def _fitting(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        """Messages without the oldest exchanges, where all of them leave no room for an answer.

        Raises LbrxError if its last message alone does not fit the context.
        """
        model, context, first = self.model, self.model.engine.context, len(self._first)
        alone = model.count_tokens([*self._first, messages[-1]])
        if alone >= context:
            raise LbrxError(
                f"the message has {alone:,} tokens, and the context is {context:,}: shorten it; "
                "the conversation continues without it"
            )
        kept = list(messages)
        room = min(self._options["max_tokens"], context // 2)
        while len(kept) > first + 1 and model.count_tokens(kept) + room > context:
            del kept[first : first + 2]
        if forgotten := (len(messages) - len(kept)) // 2:
            noun = "exchange" if forgotten == 1 else "exchanges"
            report(
                f"the conversation exceeds the context of {context:,} tokens: the oldest "
                f"{forgotten} {noun} are forgotten"
            )
        return kept


def _unknown(name: str) -> str:
    near = nearest(name, (usage.split()[0] for usage in COMMANDS))
    remedy = f"did you mean {near}?" if near else "give one that /help lists"
    return f"{name} is not a command: {remedy} (a space before it makes it a message)"


def _write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet; none is left where that fails."""
    with open(path, "x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            path.unlink()
            raise
