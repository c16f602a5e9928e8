"""``toolsim options [WORD]``, which prints toolsim's options with their values, defaults and help texts.

The values are those that a proxy would use if it started now. They come from the command line, a settings file,
mitmproxy's config.yaml and the environment. Keys are not printed.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from mitmproxy import optmanager
from mitmproxy.exceptions import OptionsError
from mitmproxy.options import Options

from toolsim.cli.config import with_config_file
from toolsim.command_line import UsageError, nearest
from toolsim.proxy.options.option import PREFIX, Option
from toolsim.proxy.options.table import OPTIONS, register
from toolsim.proxy.startup import take_problems

_MAX_WIDTH = 100
_SECRETS = ("api_key", "upstream_key")
_CONFIG_FILES = ("config.yaml", "config.yml")


def main(args: Namespace) -> int:
    """Print the options that match ``args.word``, and return the exit code.

    Raises UsageError if no option matches, or a setting is invalid.
    """
    found = matching(args.word)
    settings = [*args.set]
    if args.config is not None:
        words = with_config_file(["options"], args, args.config)
        settings += [word.removeprefix("--set=") for word in words if word.startswith("--set=")]
    values = current(settings)
    width = min(shutil.get_terminal_size().columns, _MAX_WIDTH)
    print("\n\n".join(shown(option, getattr(values, option.full_name), width) for option in found))
    return 0


def matching(word: str) -> Sequence[Option]:
    """Return the options whose names contain a word or, if there are none, the options whose help texts contain it.

    Raises UsageError if no option matches.
    """
    plain = word.lower().removeprefix(PREFIX)
    found = [option for option in OPTIONS if plain in option.name]
    found = found or [option for option in OPTIONS if plain in option.help.lower()]
    if not found:
        raise UsageError(f"no option contains {word!r}{nearest(plain, [option.name for option in OPTIONS], PREFIX)}")
    return found


def current(settings: Sequence[str]) -> Options:
    """Return the option values that a proxy would use if it started now.

    ``settings`` are strings of the form ``NAME=VALUE``. Raises UsageError if an option is invalid, or a configuration
    file cannot be read.
    """
    manager = Options()
    try:
        manager.set(*settings, defer=True)
        folder = os.path.expanduser(manager.confdir)
        optmanager.load_paths(manager, *(os.path.join(folder, name) for name in _CONFIG_FILES))
        register(manager, os.environ)
        if problems := take_problems(manager):
            raise UsageError(problems[0])
        manager.process_deferred()
    except (OptionsError, OSError) as problem:
        raise UsageError(str(problem)) from problem
    return manager


def shown(option: Option, value: Any, width: int) -> str:
    """Return an option as text for a terminal."""
    default = _text(option, option.default)
    given = _text(option, value)
    note = f"  (default: {default})" if given != default else ""
    lines = [f"{option.full_name} = {given}{note}"]
    if option.choices:
        lines += textwrap.wrap(f"One of {', '.join(choice or 'empty' for choice in option.choices)}.", width - 2)
    lines += textwrap.wrap(option.help, width - 2, break_long_words=False, break_on_hyphens=False)
    return "\n  ".join(lines)


def _text(option: Option, value: Any) -> str:
    """Return a value as written on the command line, with keys and passwords removed."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = (" ".join(value) if isinstance(value, list | tuple) else str(value)).replace("\n", r"\n")
    if not text:
        return "empty"
    return "(set)" if option.name in _SECRETS else re.sub(r"//[^/@]*@", "//", text)
