"""Checks the words of README, docs and ``--help`` by our rules; ``make lint`` runs it.

It finds forbidden words and phrases, long sentences, and pages that are hard to read. Code, tables
and the targets of links are left out. A colon or a semicolon ends a sentence, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/**/*.md")
LONGEST = 25
# An enumeration is read item by item: a sentence with three commas may be a fifth longer.
LONGEST_LIST = 30
# Flesch-Kincaid: years of school that a page asks for. Names such as "checkpoint" weigh heavily.
HARDEST = 9.0
# Of so few words nothing can be said.
FEWEST = 60

FORBIDDEN = {
    r"\bsa(?:y|id|ys) (?:so|nothing|more)\b|\b(?:is|are) said\b": "print, show, report",
    r"\btold\b|\btell(?:s|ing)?\b(?! you\b|[^.]* apart\b)": "report, show, read",
    r"\blet be\b|\bgo(?:es|ing)? on\b|\bcomes? to\b": "continue, run, reach",
    r"\bbec(?:a|o)mes? of\b|\bof late\b|\banew\b": "result, fate; recently; again",
    r"\bis none\b|\bwhat is no(?:ne)?\b|\bthat there are\b": "not one of; missing",
    r"\bthere is nothing of\b|\blet be\b|\bleft out\b": "empty; omitted",
    r"\b[Ww]ho(?:ever)? (?:looks|reads|writes|asks|says)\b|\bwhoever\b": "name the actor",
    r"\bnobody (?:says|can)\b|\banyhow\b|\bthe rest is\b": "what happens, actively",
    r"\bin the eyes of\b|\bha(?:s|ve) room\b|\bgive(?:n)? up is\b": "a plain verb",
    r"\bis over: |\bsurroundings\b|\bhouse\b|\brooms\b": "finished, environment, packages",
    r"\bstands? (?:there|in|under|below|beside|behind)\b": "is, appears",
    r"^Of \w+(?: \w+){0,3} (?:it|one|is|are|the)\b|\. Of \w+ it\b": "no fronted 'Of ...'",
    r"^How to \w.*\bsays more\b|\bnot reached\b": "See also; drop it",
}


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs and list items of Markdown without code and tables, with their lines."""
    text = re.sub(r"^```.*?^```$", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
    start, lines = 1, []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        bare = line.strip()
        ends = not bare or bare.startswith(("|", "#", ":::", "- ", "* ", "![")) or _numbered(bare)
        if ends and lines:
            yield start, plain(" ".join(lines))
            lines = []
        if bare and not bare.startswith(("|", "#", ":::", "!", "    options")):
            start = start if lines else number
            lines.append(re.sub(r"^(?:[-*]|\d+\.) ", "", bare))


def _numbered(line: str) -> bool:
    return re.match(r"\d+\. ", line) is not None


def plain(text: str) -> str:
    """Return a paragraph's words: links without targets, code as one word."""
    text = re.sub(r"!?\[([^][]*)\]\([^()]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`(?:, | and | or )?(?=`)", "", text)
    return re.sub(r"`[^`]*`", "code", text).replace("*", "")


def sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph."""
    return [each for each in re.split(r"(?<=[.!?:;])\s+", text) if re.search(r"\w", each)]


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return re.findall(r"[A-Za-z][\w'-]*", text)


def grade(text: str) -> float:
    """Return the Flesch-Kincaid grade of a text."""
    stems = [re.sub(r"e$", "", word.lower()) for word in words(text)]
    syllables = sum(max(1, len(re.findall(r"[aeiouy]+", stem))) for stem in stems)
    return 0.39 * len(stems) / max(1, len(sentences(text))) + 11.8 * syllables / len(stems) - 15.59


def check(text: str) -> Iterator[tuple[int, str]]:
    """Yield what is wrong with a page, with its line."""
    prose = list(paragraphs(text))
    for line, paragraph in prose:
        for pattern, better in FORBIDDEN.items():
            for match in re.finditer(pattern, paragraph):
                yield line, f"{match[0].strip()!r}: better {better}"
        for sentence in sentences(paragraph):
            count = len(words(sentence))
            if count > (LONGEST_LIST if sentence.count(",") >= 3 else LONGEST):
                yield line, f"{count} words in a sentence: {sentence[:70]}..."
    whole = " ".join(paragraph for _, paragraph in prose)
    if len(words(whole)) >= FEWEST and grade(whole) > HARDEST:
        yield 1, f"hard to read: grade {grade(whole):.1f}, at most {HARDEST}"


def texts() -> Iterator[tuple[str, str]]:
    """Yield what is checked: pages, and the help of each verb."""
    for pattern in PAGES:
        for page in sorted(ROOT.glob(pattern)):
            yield str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
    for verb in import_module("lllaunch.app.command_line").VERBS:
        main = import_module("lllaunch.verbs").verb(verb)
        with mock.patch(f"{main.__module__}.perform") as perform:
            main([])
        parser = perform.call_args.args[0]
        parts = [parser.description, *(each.help for each in parser._actions), parser.epilog]
        # a table of formats or states is no prose
        shown = [re.sub(r"^.*:(\n +.*)+", "", part, flags=re.M) for part in parts if part]
        yield f"lllaunch {verb} --help", "\n\n".join(shown)


if __name__ == "__main__":
    found = [f"{place}:{line}: {what}" for place, text in texts() for line, what in check(text)]
    print("\n".join(found), file=sys.stderr, end="\n" * bool(found))
    sys.exit(bool(found))
