"""Sixteen documents about things that do not exist, and questions about them.

Made by a few rules from a table, always the same, so that results can be repeated and no model knows the
answers from elsewhere.  Put your own texts in their place: `system_prompt()`, `documents()` and
`questions()` are all that the examples ask for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Dict, List

_FIELDS = ("name", "kind", "founder", "year", "material", "river", "length", "keeper", "festival", "danger")
_TABLE = """
Arvenholt|lighthouse|Mirel Osk|1641|blue slate|Tarn|48|the bell guild|Lantern Night|fog
Brackmoor|viaduct|Tolia Wend|1788|cast iron|Oss|612|a family of smiths|First Crossing|frost
Corvadine|observatory|Jask Perrin|1702|white brick|Ilm|31|seven clerks|the Counting|dust
Dunmeril|salt works|Eda Falk|1533|larch wood|Sarn|270|the harbour board|White Week|floods
Eskerby|ropeway|Hanno Brisk|1869|steel cable|Wey|1840|two sisters|Wheel Day|lightning
Fennick|library|Orla Tamsin|1590|red sandstone|Quill|95|the night readers|Open Shelf|mice
Galdry|clock tower|Peer Vanto|1677|green copper|Mord|62|the hour council|Long Minute|rust
Harrowmere|ferry|Sunniva Lode|1815|tarred oak|Brine|24|the river wardens|Low Water|ice
Ilsworth|glass house|Corin Ashby|1893|pressed glass|Alder|140|a botanist's heirs|Seed Fair|hail
Jurenne|mint|Vessa Kold|1604|grey granite|Perle|77|the weighers|Coin Morning|theft
Kestrun|windmill|Ambrose Tell|1720|lime plaster|Dray|19|the miller's school|Flour Dance|storms
Lowenfar|aqueduct|Britta Hessel|1451|volcanic tuff|Gor|3120|the water bench|Spring Walk|roots
Marrowdel|theatre|Ilan Roux|1756|painted pine|Sable|54|the prompters|Silent Act|fire
Norrick|quarry|Greta Umber|1842|black basalt|Flint|410|the stone choir|Echo Sunday|landslides
Oldersund|archive|Teo Marchetti|1667|baked clay|Vane|88|eleven scribes|Reading Out|damp
Pelloway|foundry|Signe Darrow|1799|fire brick|Coal Run|203|the casting house|Hot Metal|smoke
"""

_PARAGRAPHS = """
The {kind} of {name} was founded by {founder} in the year {year}. It stands by the river {river}, a short walk
below the old market, and is built of {material}. From end to end it measures {length} metres, a number that
every child of the place can say before it can say its own age. Visitors who come by the northern road see it
first from the hill, where a bench was put for them in {bench}.

How {founder} came to {name} is told in two ways. The first story has a winter journey, a broken axle and a
night in a shed by the {river}; the second has a quarrel over a debt, and a map that was won at cards. Both
agree that the first winter was hard, that {material} had to be brought over the hills by mule, and that
nothing was finished until {finished}, when a roof of some kind kept the rain out.

Today {keeper} look after the {kind}, as they have done since {kept}. Their rules fill a small book. One of
them says that nobody may whistle after dusk; another that a stranger who asks the way is to be walked to the
door and not merely pointed there. The greatest danger has always been {danger}, and against {danger} there is
a chest of tools that is opened once a year and counted by two people.

{notes}

Once a year the people of {name} hold {festival}. It begins at the {kind} before sunrise, with bread and a
reading of the founder's only surviving letter, and ends by the {river} with lights on small boats. Whoever
has spent the year well is asked to speak, and whoever has not is asked to cook. The {kind} is open on that
day from cellar to roof, and it is the one day on which {keeper} take no money at the door.
"""

# Four of these, in an order of its own, for each document.
_NOTES = """
In spring the walls are washed with water of the {river}, which is said to keep {material} from fading.
A ledger in the entrance lists each repair since {ledger}, with what was paid for it and to whom.
The {side} side was rebuilt in {rebuilt} after {danger} had done more harm than in any year before.
Of {windows} windows only a dozen can be opened, and of those {outwards} open outwards, for no reason.
A painter from the coast lived here for {painter} years; his {founder} is wrong in everything but the boots.
Letters that arrive without a name are answered by {keeper} all the same, usually within the month.
The floor sinks by the width of a thumb in {sinks} years, and is raised again on the side of the {river}.
Apprentices begin by carrying {material} and end, if they stay, by deciding where it goes.
"""

_QUESTIONS = (
    ("Who founded the {kind} of {name}?", "founder"),
    ("In which year was the {kind} of {name} founded?", "year"),
    ("What is the {kind} of {name} built of?", "material"),
    ("By which river does the {kind} of {name} stand?", "river"),
    ("How many metres does the {kind} of {name} measure?", "length"),
    ("Who looks after the {kind} of {name}?", "keeper"),
    ("Which festival is held at the {kind} of {name}?", "festival"),
)


@dataclass(frozen=True)
class Document:
    title: str
    text: str
    facts: Dict[str, str]


@dataclass(frozen=True)
class Question:
    text: str
    answer: str
    document: int  # the one that knows


def system_prompt() -> str:
    return (
        "You answer questions about the documents that you are given. Answer from the documents alone, in "
        "one short sentence, and say that you do not know where they do not tell."
    )


def documents() -> List[Document]:
    """All of them, of about 400 words each."""
    return [_document(row) for row in _TABLE.strip().split("\n")]


def questions(n: int = 100) -> List[Question]:
    """`n` questions, in an order that jumps between the documents."""
    out = [
        Question(text.format(**document.facts), document.facts[fact], i)
        for i, document in enumerate(documents())
        for text, fact in _QUESTIONS
    ]
    random.Random(4).shuffle(out)
    return [out[i % len(out)] for i in range(n)]


def _document(row: str) -> Document:
    facts = dict(zip(_FIELDS, row.split("|")))
    year, choose = int(facts["year"]), random.Random(row)
    more = {
        "bench": year + 61,
        "finished": year + 7,
        "kept": year + 112,
        "ledger": year + 30,
        "rebuilt": year + choose.randint(70, 90),
        "side": choose.choice(("eastern", "western", "southern")),
        "windows": choose.randint(30, 60),
        "outwards": choose.randint(3, 9),
        "painter": choose.randint(2, 9),
        "sinks": choose.randint(20, 80),
    }
    notes = choose.sample(_NOTES.strip().split("\n"), 4)
    text = _PARAGRAPHS.strip().replace("{notes}", " ".join(notes)).format(**facts, **more)
    paragraphs = (" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))
    return Document(f"The {facts['kind']} of {facts['name']}", "\n\n".join(paragraphs), facts)
