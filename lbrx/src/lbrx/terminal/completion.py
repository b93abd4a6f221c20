"""Completion of a command's words in bash, zsh and fish, from the parsers of its arguments.

The scripts contain what the parsers say, since starting Python at each press of Tab takes too long.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FILE_METAVARS = {
    *("CONFIG", "DIR", "FILE", "JSON", "MODEL", "OUT", "PATH", "PATH[:SCALE]", "SOURCE"),
}
"""Values of options that are files or folders, beside those that the parser makes a Path of."""
SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Argument:
    """An option or a positional argument."""

    names: tuple[str, ...]
    """The option's spellings; none for a positional argument."""
    help: str
    takes_value: bool
    choices: Mapping[str, str]
    """The possible values with what they mean."""
    is_file: bool
    repeats: bool = False
    """Whether all further positional arguments are of this kind."""


@dataclass(frozen=True)
class Command:
    """A command, or a part of one, whose words are all that lead to it."""

    words: tuple[str, ...]
    options: tuple[Argument, ...]
    positionals: tuple[Argument, ...]
    parts: Mapping[str, str]
    """The commands that it consists of, with what they do."""


def script(shell: str, commands: list[Command]) -> str:
    """The completion script of a shell for a command, which comes first, and its parts."""
    writers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return writers[shell](commands)


def described(words: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[Command]:
    """The command of a parser and the commands that it consists of."""
    options: list[Argument] = []
    positionals: list[Argument] = []
    parts: dict[str, str] = {}
    parsers: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parts = {each.dest: each.help or "" for each in action._choices_actions}
            parsers = action.choices
        else:
            (options if action.option_strings else positionals).append(_argument(parser, action))
    yield Command(words, tuple(options), tuple(positionals), parts)
    for name, part in parsers.items():
        yield from described((*words, name), part)


def _argument(parser: argparse.ArgumentParser, action: argparse.Action) -> Argument:
    positional = not action.option_strings
    takes_value = action.nargs != 0
    is_file = positional or action.type is Path or action.metavar in FILE_METAVARS
    return Argument(
        tuple(action.option_strings),
        parser._get_formatter()._expand_help(action),
        takes_value,
        {str(each): "" for each in action.choices or ()},
        takes_value and not action.choices and is_file,
        action.nargs in ("*", "+", argparse.REMAINDER),
    )


# ---- bash and zsh: a table, and a function that finds the place in the command line ----


def _table(commands: list[Command]) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """What can be at a place: (place, kind, words with their meanings). A place is a command's
    words and then the option whose value it is, or `options`, a number or `rest`."""
    for command in commands:
        at = " ".join(command.words)
        yield (
            f"{at} options",
            "words",
            {n: each.help for each in command.options for n in each.names},
        )
        if command.parts:
            yield f"{at} 1", "commands", command.parts
        for number, each in enumerate(command.positionals, 1):
            yield f"{at} {'rest' if each.repeats else number}", *_kind(each)
        for each in command.options:
            if each.takes_value:
                yield from ((f"{at} {name}", *_kind(each)) for name in each.names)


def _kind(argument: Argument) -> tuple[str, Mapping[str, str]]:
    if argument.choices:
        return "words", argument.choices
    return ("files" if argument.is_file else "nothing"), {}


def _bash(commands: list[Command]) -> str:
    rows = "\n".join(
        f"        {shlex.quote(place)}) kind={kind} words={shlex.quote(' '.join(words))} ;;"
        for place, kind, words in _table(commands)
    )
    return _BASH.replace("COMMAND", commands[0].words[0]).replace("ROWS", rows)


def _zsh(commands: list[Command]) -> str:
    def entry(word: str, meaning: str) -> str:
        return shlex.quote(f"{word.replace(':', chr(92) + ':')}:{meaning}" if meaning else word)

    rows = "\n".join(
        f"        {shlex.quote(place)}) kind={kind} "
        f"found=({' '.join(entry(*each) for each in words.items())}) ;;"
        for place, kind, words in _table(commands)
    )
    return _ZSH.replace("COMMAND", commands[0].words[0]).replace("ROWS", rows)


# bash 3.2, which macOS has, has no associative arrays and no compopt.
_BASH = """# bash completion of COMMAND, written by `COMMAND completion bash`

_COMMAND_at() {
    kind= words=
    case $1 in
ROWS
    esac
}

_COMMAND() {
    local IFS=$' \\t\\n' command=COMMAND place=1 option= ended= kind words word i
    local current=${COMP_WORDS[COMP_CWORD]}
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $option ]]; then  # --option=value is three words
            [[ $word == '=' ]] || option=
            continue
        fi
        if [[ ! $ended && $word == -- ]]; then
            ended=1
        elif [[ ! $ended && $word == -?* ]]; then
            _COMMAND_at "$command $word"
            [[ $kind ]] && option=$word
        else
            _COMMAND_at "$command $place"
            if [[ $kind == commands ]]; then command="$command $word"; else place=$((place + 1)); fi
        fi
    done
    COMPREPLY=()
    if [[ $option ]]; then
        [[ $current == '=' ]] && current=
        _COMMAND_at "$command $option"
    elif [[ ! $ended && $current == -* ]]; then
        _COMMAND_at "$command options"
    else
        _COMMAND_at "$command $place"
        [[ $kind ]] || _COMMAND_at "$command rest"
    fi
    [[ $kind == files ]] && return  # readline completes them, as the option `default` says
    compopt +o default 2>/dev/null
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}

complete -o default -F _COMMAND COMMAND
"""

_ZSH = """#compdef COMMAND
# zsh completion of COMMAND, written by `COMMAND completion zsh`

_COMMAND_at() {
    kind= found=()
    case $1 in
ROWS
    esac
}

_COMMAND() {
    local command=COMMAND place=1 option= ended= kind word i
    local -a found
    for ((i = 2; i < CURRENT; i++)); do
        word=${words[i]}
        if [[ -n $option ]]; then
            option=
        elif [[ -z $ended && $word == -- ]]; then
            ended=1
        elif [[ -z $ended && $word == -?* ]]; then
            _COMMAND_at "$command $word"
            [[ -n $kind ]] && option=$word
        else
            _COMMAND_at "$command $place"
            if [[ $kind == commands ]]; then command="$command $word"; else ((place++)); fi
        fi
    done
    word=${words[CURRENT]}
    if [[ -z $ended && -z $option && $word == --*=* ]]; then
        option=${word%%=*}
        compset -P '*='
    fi
    if [[ -n $option ]]; then
        _COMMAND_at "$command $option"
    elif [[ -z $ended && $word == -* ]]; then
        _COMMAND_at "$command options"
    else
        _COMMAND_at "$command $place"
        [[ -n $kind ]] || _COMMAND_at "$command rest"
    fi
    case $kind in
        files) _files ;;
        words | commands) _describe COMMAND found ;;
    esac
}

if [[ ${funcstack[1]} == _COMMAND ]]; then  # from a folder of fpath
    _COMMAND "$@"
else
    compdef _COMMAND COMMAND
fi
"""


# ---- fish: a line for each option and word ----


def _fish(commands: list[Command]) -> str:
    name = commands[0].words[0]
    lines = [_FISH.replace("COMMAND", name)]
    for command in commands:
        condition = " ".join((f"__{name}_{'is' if command.parts else 'at'}", *command.words[1:]))
        here = f"complete -c {name} -n {_in_fish(condition)}"
        lines += [f"{here} -a {part} -d {_in_fish(text)}" for part, text in command.parts.items()]
        if not any(each.is_file for each in command.positionals):
            lines.append(f"{here} -f")
        lines += [
            f"{here} -a {_in_fish(' '.join(each.choices))}"
            for each in command.positionals
            if each.choices
        ]
        lines += [f"{here}{_fish_option(each)}" for each in command.options]
    return "\n".join(lines) + "\n"


def _fish_option(option: Argument) -> str:
    """The part of a line that describes an option."""
    names = "".join(
        f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in option.names
    )
    value = ""
    if option.takes_value:
        value = " -r -F" if option.is_file else " -x"
    if option.choices:
        value += f" -a {_in_fish(' '.join(option.choices))}"
    return f"{names}{value} -d {_in_fish(option.help)}"


def _in_fish(text: str) -> str:
    """A word in fish's single quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_FISH = """# fish completion of COMMAND, written by `COMMAND completion fish`

function __COMMAND_at -d 'Whether the words before the cursor begin with COMMAND and these'
    set -l given (commandline -opc)
    set -l number (count $argv)
    set -e given[1]
    test $number -eq 0
    or test (count $given) -ge $number -a "$given[1..$number]" = "$argv"
end

function __COMMAND_is -d 'Whether the words before the cursor are COMMAND and these'
    test (count (commandline -opc)) -eq (math (count $argv) + 1)
    and __COMMAND_at $argv
end
"""
