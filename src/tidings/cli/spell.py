"""`tidings spell`: the numbers of a text in words."""

from __future__ import annotations

import argparse
import os
import sys

from tidings.cli import extras
from tidings.cli.output import print_json, print_value

HELP = """\
Prints a text with its numbers spelled out, as the web service of `tidings serve --http` does.
Languages: en, es, pt (of Portugal), pt-BR. What is a number and what is not: docs/spelling.md.
"""

EXAMPLES = """\
  tidings spell "I have 2 cats"
  tidings spell --lang es "El 1.er gato pesa 3,5 kilos"
  tidings get news --follow | tidings spell --lang pt     # line by line
  tidings spell "I have 2 cats" --json | jq .text
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", nargs="?", help="the text (default: every line of standard input)")
    parser.add_argument("--lang", metavar="LANGUAGE", default="en", help="en (default), es, pt or pt-BR")
    parser.add_argument("--json", action="store_true", help="print text and language as JSON, one per line")


def run(arguments: argparse.Namespace) -> int:
    with extras.needed("web", "tidings spell"):
        from tidings.spelling import spell
    # Bytes that are not UTF-8 come out as they went in, but JSON has no place for them.
    errors = "replace" if arguments.json else "surrogateescape"
    lines = sys.stdin.buffer if arguments.text is None else [os.fsencode(arguments.text)]
    for line in lines:
        text = spell(line.removesuffix(b"\n").decode(errors=errors), arguments.lang)
        if arguments.json:
            print_json({"text": text, "lang": arguments.lang})
        else:
            print_value(text.encode(errors=errors))
    return 0
