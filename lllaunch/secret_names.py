"""Which names say that what they name is a secret, and which values look like one.

And how secrets are kept out of what is written (`redactor`), and out of overrides; of a whole
config `lllaunch.config.read` says so.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lllaunch.files import read_text

if TYPE_CHECKING:
    from lllaunch.spec import LaunchSpec

# What stands alone in apiKey, HF-TOKEN, DB_PASSWD and APIKey2.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Of words in capitals, each between underscores. A key or token behind one of the second line's
# words lets somebody in.
_TELLING = re.compile(
    r"_(?:(?:SECRET|PASSWORD|PASSPHRASE|CREDENTIAL|APIKEY)S?|PASSWD"
    r"|(?:API|ACCESS|AUTH|PRIVATE|REFRESH|BEARER|ENCRYPTION|SIGNING|SSH|LICENSE|DEPLOY|MASTER"
    r"|SESSION|SERVICE)_(?:KEY|TOKEN)S?)_"
)
# Before a key or token these say that it is an ordinary one.
_KEY = (
    r"(?:^_|_(?!(?:SORT|PRIMARY|FOREIGN|PARTITION|PUBLIC|GROUP|INDEX|CACHE|PAD|EOS|BOS|UNK|MASK|SEP"
    r"|CLS|STOP|SPECIAL|MAX|MIN|NUM)_)[A-Z]+_)(?:KEY|TOKEN)"
)
_ENDS_IN_KEY, _HAS_KEY = re.compile(f"{_KEY}_$"), re.compile(f"{_KEY}S?_")


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: object) -> bool:
    """Return whether a name says that what it names is a secret, if it looks like one.

    Words are told apart by capitals, ``_``, ``-`` and anything else that is no letter: ``api_key``,
    ``apiKey`` and ``API-KEY`` are one name. TOKENIZERS_PARALLELISM is none, nor is ``sort_key``. In
    a name in capitals, as variables have, a key or token counts anywhere, else at the end.
    """
    if not isinstance(name, str):
        return False
    keys = _HAS_KEY if name.isupper() else _ENDS_IN_KEY
    return is_telling_name(name) or keys.search(_words(name)) is not None


def is_telling_name(name: object) -> bool:
    """Return whether a name can hardly stand for anything but a secret: ``db_password``."""
    return isinstance(name, str) and _TELLING.search(_words(name)) is not None


def _words(name: str) -> str:
    return "_".join(["", *_WORD.findall(name), ""]).upper()


# Hexadecimal, or one word of capitals, small letters and digits, and no path: names of users, hosts
# and runs, and directories are not. An address is one only with a login.
_RANDOM = re.compile(
    r"[0-9a-f]{32,}"
    r"|(?![/~]|\.\.?/)(?=\S*@|(?!\S*://))(?=\S*[A-Z])(?=\S*[a-z])(?=\S*[0-9])\S{16,}",
    re.ASCII,
)
# As OpenAI, Hugging Face, GitHub, GitLab, Slack, AWS, Google, JWT and PEM write them, and what
# logs in at a URL.
_TOKEN = re.compile(
    r"\bsk-(?:\w+-)*\w{16,}|\bhf_\w{16,}|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}"
    r"|\bglpat-[\w-]{16,}|\bxox[abprs]-[\w-]{10,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{30,}"
    r"|\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|://[^/\s:@${}]*:[^/\s@${}]+@",
    re.ASCII,
)
_NAMES = re.compile(r"[\w-]+")


def is_literal_secret(text: str, name: object = "") -> bool:
    """Return whether a text in a config is a secret itself, by its look.

    Under a name that says secret, what is long and looks random is one, too.
    """
    return _TOKEN.search(text) is not None or (
        is_secret_name(name) and _RANDOM.fullmatch(text) is not None
    )


def is_secret(value: str, *names: str) -> bool:
    """Return whether a value must not be shown wherever it turns up.

    ``names`` are those of the variable and of its key, or texts with such names.
    """
    return _RANDOM.fullmatch(value) is not None or any(
        is_secret_name(name) for text in names for name in _NAMES.findall(text)
    )


def source_for(name: str) -> str:
    """Return what stands for the literal value of a key: the variable it should come from."""
    variable = re.sub(r"\W", "_", name).upper()
    return f"${{oc.env:{variable}}}"


# The parts of a value in an override: brackets, names of what follows, and words.
_PART = re.compile(
    r"""(?P<opens>\{)|(?P<closes>\})"""
    r"""|oc\.env\s*\\?:\s*(?P<variable>\w+)"""
    r"""|(["']?)(?P<name>[\w.-]+)\4\s*\\?:(?!//)"""
    r"""|[^\s,{}\[\]()'"$\\]+"""
)


def redacted_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return Hydra's overrides with ``${oc.env:NAME}`` in place of the literal secrets in them."""
    return tuple(_redacted(override) for override in overrides)


def literals_in(overrides: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the secrets that overrides hold themselves, as `literals` does.

    Choices of config groups are not looked at.
    """
    for override in overrides:
        if _redacted(override) != override:
            key, _, value = override.lstrip("+~").partition("=")
            yield key, source_for(_last(key)), value


def _redacted(override: str) -> str:
    key, equals, value = override.partition("=")
    own = _last(key.lstrip("+~-"))
    # of a word, and of all that it is in
    names = [own]

    def replaced(part: re.Match[str]) -> str:
        if part["opens"]:
            names.append(names[-1])
        elif part["closes"]:
            names[:] = names[:-1] or names
        elif name := part["variable"] or part["name"]:
            names[-1] = name
        elif any(is_literal_secret(part[0], each) for each in names):
            return source_for(names[-1])
        return part[0]

    text = _PART.sub(replaced, value)
    # what has blanks is no word
    return f"{key}{equals}{source_for(own) if is_literal_secret(text) else text}"


def _last(key: str) -> str:
    return re.split(r"[./@]", key)[-1]


# Keeping them out of what is written


# What a plan says instead of a value.
_SOURCE = re.compile(r"\$\{oc\.env:(\w+)")
_SHORTEST, _LONG = 4, 16  # characters


def redactor(secrets: Mapping[str, str], *, certain: bool = False) -> Callable[[str], str]:
    """Return what replaces the values of secrets in text, each by its source.

    Values that are no secrets are left alone (`is_secret`): those of most variables are the names
    of users, hosts and directories, which stand in half of all lines. ``certain`` says that all of
    them are secrets, whatever they are called and look like.
    """
    names = {
        value: source
        for value, source in secrets.items()
        if len(value) >= _SHORTEST and (certain or is_secret(value, source))
    }
    # the longest first: a secret may hold another one
    longest = sorted(names, key=len, reverse=True)
    pattern = re.compile("|".join(map(_whole_words, longest)))
    return lambda text: pattern.sub(lambda found: names[found[0]], text) if names else text


def redactor_for(spec: LaunchSpec) -> Callable[[str], str]:
    """Return the same for the secrets that a run gives to its workers."""
    secrets = {
        value: source
        for path, value, source in spec.withheld
        if is_secret(value, *map(str, path), source)
    }
    return redactor(secrets, certain=True)


def redactor_of(directory: str) -> Callable[[str], str]:
    """Return what takes the values of variables that a run's plan names out of what it has left.

    Plans of its nodes are in directories in its own; the values may be in this environment.
    """
    plans = [os.path.join(directory, "plan.yaml")]
    with contextlib.suppress(OSError):
        plans += [os.path.join(directory, name, "plan.yaml") for name in os.listdir(directory)]
    names = {name for plan in plans for name in _SOURCE.findall(read_text(plan) or "")}
    return redactor({os.environ[name]: f"${{oc.env:{name}}}" for name in names & os.environ.keys()})


def _whole_words(value: str) -> str:
    """Return a pattern for a value; a short one may be a part of an ordinary word."""
    pattern = re.escape(value)
    if len(value) >= _LONG:
        return pattern
    before = r"(?<!\w)" if re.match(r"\w", value) else ""
    return f"{before}{pattern}" + (r"(?!\w)" if re.search(r"\w\Z", value) else "")
