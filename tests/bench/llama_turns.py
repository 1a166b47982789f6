#!/usr/bin/env python3
"""Time to first token of a conversation's turns, without prefixd and with it, on real workers.

    PREFIXD_LLAMA_BIN=... PREFIXD_LLAMA_MODEL=... tests/bench/llama_turns.py [--repeats 5] [--turns 6]

Worker A plays a conversation with a long system prompt.  Each turn from the second on is first put
to a worker that was started for it and never saw the conversation (B), and to one without a cache
(C), one after the other in changing order.  Every repeat has a salt of its own, so nothing of an
earlier one is found.  Prompts are token ids; an answer has `--answer` tokens, greedy.  TTFT is what the
asker sees: from the request's first byte to the first event's.  Printed are medians over the repeats,
then for each turn the token ids of B and of C; C's prefill is cut where the stored K/V was cut,
in a run of its own that is not timed, and must give the tokens that B gave in every repeat.  Exit status 1 when tokens
differ, when a hit is not all full blocks of the earlier turns, or when the first token did not come
five times sooner in the median of each turn from the second on.
"""
import argparse
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from daemon import Daemon  # noqa: E402
from llama_worker import Cuts, Worker, missing  # noqa: E402

BLOCK = 16
QUESTIONS = [
    "Which of these rules would you call the most important one, and why?",
    "Explain it again to somebody who has never worked in an office.",
    "What would go wrong first if nobody kept to it?",
    "Name three exceptions that you would allow.",
    "Write that down as a short notice for the wall.",
    "Now say in one sentence what we have talked about.",
    "And what should we talk about next?",
    "Thank you. Is there anything that you would add?",
]


def system_text(sentences):
    """A system prompt that says something different in each sentence."""
    subjects = ["Invoices", "Visitors", "Keys", "Ladders", "Letters", "Parcels", "Meetings", "Lamps", "Plants", "Forms"]
    verbs = ["are counted", "are signed for", "are kept dry", "are shown to the porter", "are put back", "are labelled"]
    times = ["before noon", "on Mondays", "after each use", "at the end of a month", "when two people are present"]
    rules = [f"Rule {i + 1}: {subjects[i * 7 % 10]} {verbs[i * 5 % 6]} {times[i * 3 % 5]}, and item {i * 37 % 101} is no exception."
             for i in range(sentences)]
    return "You answer questions about the rules of a house. " + " ".join(rules)


@dataclass
class Turn:
    prompt_tokens: int = 0
    earlier_blocks: int = 0  # full blocks of the earlier turns, in tokens
    hits: list = field(default_factory=list)
    ttft_with: list = field(default_factory=list)
    ttft_without: list = field(default_factory=list)
    prefill_with: list = field(default_factory=list)
    prefill_without: list = field(default_factory=list)
    tokens_with: list = field(default_factory=list)
    tokens_control: list = field(default_factory=list)
    tokens_plain: list = field(default_factory=list)


class Conversation:
    """Token ids of a conversation in ChatML, grown turn by turn by what a worker answered."""

    def __init__(self, worker, system_tokens):
        self.worker = worker
        sentences = system_tokens // 24
        self.ids = []
        while len(self.ids) < system_tokens:
            self.ids = worker.tokenize(f"<|im_start|>system\n{system_text(sentences)}<|im_end|>\n")
            sentences += 1
        self.system_tokens = len(self.ids)

    def ask(self, n):
        self.ids = self.ids + self.worker.tokenize(
            f"<|im_start|>user\n{QUESTIONS[n % len(QUESTIONS)]}<|im_end|>\n<|im_start|>assistant\n")
        return self.ids

    def answered(self, tokens):
        self.ids = self.ids + tokens + self.worker.tokenize("<|im_end|>\n")


def rate(answer):
    return answer.timings.get("prefill_tokens_per_second") or 0.0


def play(daemon, options, repeats, turns, answer_tokens, system_tokens, chunk):
    """Returns (turns, tokens of the system prompt).  Turn 1 is asked of A alone, cold, and of C."""
    table = [Turn() for _ in range(turns)]
    with Worker(socket=None, chunk=chunk, **options) as plain, Worker(socket=daemon.socket, chunk=chunk, **options) as first:
        for repeat in range(repeats):
            salt = f"repeat {repeat}"
            talk, cuts, stored = Conversation(plain, system_tokens), Cuts(chunk), 0
            for number, turn in enumerate(table):
                prompt = talk.ask(number)
                turn.prompt_tokens, turn.earlier_blocks = len(prompt), stored

                def without():
                    answer = plain.complete(prompt, max_tokens=answer_tokens)
                    turn.ttft_without.append(answer.ttft)
                    turn.prefill_without.append(rate(answer))
                    turn.tokens_plain.append(answer.tokens)

                def cached(worker):
                    answer = worker.complete(prompt, max_tokens=answer_tokens, cache_salt=salt)
                    turn.ttft_with.append(answer.ttft)
                    turn.prefill_with.append(rate(answer))
                    turn.hits.append(answer.cached)
                    turn.tokens_with.append(answer.tokens)
                    return answer

                if number == 0:
                    without()
                    answer = cached(first)
                else:
                    if repeat % 2:
                        without()
                    with Worker(socket=daemon.socket, chunk=chunk, **options) as fresh:
                        answer = cached(fresh)
                    if not repeat % 2:
                        without()
                    # A goes on with the conversation too: its own hit is whatever B left it.
                    first.complete(prompt, max_tokens=answer_tokens, cache_salt=salt)
                if repeat == 0:
                    splits = cuts.before(len(prompt), answer.cached)
                    turn.tokens_control = plain.complete(prompt, max_tokens=answer_tokens, prefill_splits=splits).tokens
                told = len(prompt) + len(answer.tokens)
                cuts.turn(answer.cached, len(prompt), told)
                talk.answered(answer.tokens)
                stored = told // BLOCK * BLOCK
        return table, talk.system_tokens


def show(table, system_tokens, out=sys.stdout):
    print(f"system prompt of {system_tokens} tokens; medians of {len(table[0].hits)} interleaved repeats", file=out)
    print(f"{'turn':>4} {'prompt':>7} {'hit':>6} | {'TTFT without':>13} {'with':>9} {'ratio':>6} | "
          f"{'prefill tokens/s without':>24} {'with':>6}", file=out)
    for number, turn in enumerate(table, 1):
        without, cached = statistics.median(turn.ttft_without), statistics.median(turn.ttft_with)
        print(f"{number:>4} {turn.prompt_tokens:>7} {int(statistics.median(turn.hits)):>6} | {without * 1e3:>10.1f} ms "
              f"{cached * 1e3:>6.1f} ms {without / cached:>6.1f} | {statistics.median(turn.prefill_without):>24.0f} "
              f"{statistics.median(turn.prefill_with):>6.0f}", file=out)


def problems(table, least_ratio):
    """Sentences about what is not as it must be; empty when all is well."""
    found = []
    for number, turn in enumerate(table, 1):
        for repeat, own in enumerate(turn.tokens_with, 1):
            if own != turn.tokens_control:
                found.append(f"turn {number}, repeat {repeat}: tokens differ: with {own} without {turn.tokens_control}")
        for repeat, hit in enumerate(turn.hits, 1):
            if hit != turn.earlier_blocks:
                found.append(f"turn {number}, repeat {repeat}: hit {hit} of {turn.earlier_blocks} tokens in full blocks")
        ratio = statistics.median(turn.ttft_without) / statistics.median(turn.ttft_with)
        if number > 1 and ratio < least_ratio:
            found.append(f"turn {number}: the first token came {ratio:.1f} times sooner, not {least_ratio}")
    return found


def main():
    parser = argparse.ArgumentParser(description="TTFT of a conversation's turns, without prefixd and with it")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--answer", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--system", type=int, default=1500, help="tokens of the system prompt, at least")
    parser.add_argument("--chunk", type=int, default=256, help="tokens of prefill at a time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quiet", action="store_true", help="do not print the token ids")
    args = parser.parse_args()
    if missing():
        sys.exit(missing())
    with Daemon(pool_blocks=8192) as daemon:
        table, system_tokens = play(daemon, {"threads": args.threads, "ctx": 4096, "slots": 1}, args.repeats, args.turns,
                                    args.answer, args.system, args.chunk)
    show(table, system_tokens)
    if not args.quiet:
        for number, turn in enumerate(table, 1):
            print(f"turn {number} with    {turn.tokens_with[0]}")
            print(f"turn {number} without {turn.tokens_control}")
            same = turn.tokens_plain[0] == turn.tokens_with[0]
            print(f"turn {number} without, prefill not cut alike: {'the same' if same else 'other'} tokens")
    found = problems(table, 5.0)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
