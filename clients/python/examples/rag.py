#!/usr/bin/env python3
"""Questions about a fixed set of documents, asked of an OpenAI-compatible server, and what its cache saved.

    python3 rag.py --url http://127.0.0.1:8081

Each question is put behind the documents that fit it best, in an order that does not depend on the
question.  That is what makes prompts begin alike: system prompt, documents, and only then what differs.
The K/V of everything before the question is computed once for all workers of the machine.
"""

from __future__ import annotations

import collections
import math
import re
import sys
from typing import Dict, List, Sequence

from completions import Message, ServerError, comparison, fail, options, positive
from documents import Document, documents, questions, system_prompt


class Retriever:
    """Words that few documents have count most.  A stand-in for your own search."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.words = [collections.Counter(words(text)) for text in texts]
        found = collections.Counter(word for counted in self.words for word in counted)
        self.weight: Dict[str, float] = {word: math.log(1 + len(texts) / n) for word, n in found.items()}

    def best(self, question: str, n: int) -> List[int]:
        """The n documents that fit best, in their own order: the same set is always the same prefix."""
        asked = set(words(question))
        scores = [
            sum(self.weight[word] * (1 + math.log(counted[word])) for word in asked if word in counted)
            for counted in self.words
        ]
        best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        return sorted(best[:n])


def words(text: str) -> List[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def prompt(chosen: Sequence[Document], question: str) -> List[Message]:
    """What is shared first, what differs last."""
    texts = "\n\n".join(f"# {document.title}\n\n{document.text}" for document in chosen)
    return [
        {"role": "system", "content": f"{system_prompt()}\n\n{texts}"},
        {"role": "user", "content": question},
    ]


def main() -> int:
    parser = options("ask questions about documents, with and without the server's prompt cache")
    parser.add_argument("--questions", type=positive, default=100, help="how many (default: %(default)s)")
    parser.add_argument("--documents", type=int, default=2, help="in each prompt (default: %(default)s)")
    parser.add_argument("--answers", action="store_true", help="print what was answered and what is right")
    args = parser.parse_args()
    texts = documents()
    retriever = Retriever([f"{document.title} {document.text}" for document in texts])
    try:
        compared = comparison(args)
        compared.header()
        right = found = 0
        for number, question in enumerate(questions(args.questions), 1):
            chosen = retriever.best(question.text, args.documents)
            found += question.document in chosen
            name = f"{number:3} {'+'.join(texts[i].facts['name'] for i in chosen)}"
            answer = compared.ask(name, prompt([texts[i] for i in chosen], question.text))
            right += question.answer.lower() in answer.text.lower()
            if args.answers:
                print(f"    {question.text} {answer.text.strip()!r}; right: {question.answer}")
        compared.summary()
        print(f"the document that knows was among those given {found} times of {args.questions}, ", end="")
        print(f"and the right words in the answer {right} times")
    except ServerError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
