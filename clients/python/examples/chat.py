#!/usr/bin/env python3
"""A conversation of several turns with an OpenAI-compatible server, and what its cache saved.

    python3 chat.py --url http://127.0.0.1:8081 --other http://127.0.0.1:8082

Each turn sends all that was said before; with a shared cache only the last message is computed, whichever
worker gets it.  With --other the turns go to the two servers in turn: the second one never saw what the
first one has computed.
"""

from __future__ import annotations

import argparse
import sys
from typing import List

from completions import Comparison, Message, ServerError, comparison, fail, options, positive
from documents import documents

# What the assistant is to know: it makes the system prompt as long as those of real assistants are.
_SYSTEM = "You are the guide of a museum. Answer in a few sentences, from what follows.\n\n"
_TURNS = (
    "Who built it, and when?",
    "What is it made of? Where did that come from?",
    "What is the greatest danger to it?",
    "Who looks after it today?",
    "What happens at the festival?",
    "How long is it from end to end?",
    "Is there a story about how its founder came here?",
    "When would you visit, and why?",
)


def main() -> int:
    parser = options("hold a conversation, with and without the server's prompt cache")
    parser.add_argument("--other", default="", help="a second server, asked in every second turn")
    parser.add_argument("--turns", type=positive, default=6, help="how many (default: %(default)s)")
    parser.add_argument(
        "--say", action="append", default=[], help="a message of your own; may be given again"
    )
    args = parser.parse_args()
    texts = documents()[:3]
    system = _SYSTEM + "\n\n".join(document.text for document in texts)
    said = args.say or [_TURNS[i % len(_TURNS)] for i in range(args.turns)]
    try:
        talk(args, system, [f"About {texts[0].title}: {said[0]}", *said[1:]] if not args.say else said)
    except ServerError as error:
        return fail(error)
    return 0


def talk(args: argparse.Namespace, system: str, said: List[str]) -> None:
    compared: Comparison = comparison(args)
    servers = [compared.server]
    if args.other:
        other = argparse.Namespace(**{**vars(args), "url": args.other})
        servers.append(comparison(other).server)
    messages: List[Message] = [{"role": "system", "content": system}]
    compared.header()
    for turn, text in enumerate(said):
        messages.append({"role": "user", "content": text})
        compared.server = servers[turn % len(servers)]
        where = f" at {chr(ord('A') + turn % len(servers))}" if args.other else ""
        answer = compared.ask(f"turn {turn + 1}{where}", messages)
        messages.append({"role": "assistant", "content": answer.text})
    compared.summary()


if __name__ == "__main__":
    sys.exit(main())
