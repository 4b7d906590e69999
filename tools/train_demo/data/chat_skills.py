"""Single exchanges without tools: small talk, repeating, counting, lists, sums, honest refusals."""

# ruff: noqa: E501, SIM905  (phrasings and word lists are data, one per line)

from __future__ import annotations

from typing import NamedTuple

from . import values
from .source import Phrasings, Pool, Source, headed, phrases, written


class Exchange(NamedTuple):
    """A user text, the answer of the model, and its reasoning."""

    user: str
    answer: str
    reasoning: str


ENDS = ("", "", "", ".", "!", "?", " please", " :)", "...")


class Talk(NamedTuple):
    """Small talk of one kind: its phrasings, answers, and the reasoning before them."""

    phrasings: Phrasings
    answers: tuple[str, ...]
    reasoning: str


_SAID = written("talk")
TALK = (
    Talk(
        _SAID["greeting"],
        ("Hello! How can I help you?", "Hi! What can I do for you?"),
        "The user greets me. I greet back.",
    ),
    Talk(
        _SAID["how are you"],
        ("I am fine, thank you. How can I help you?",),
        "The user asks how I am. I answer politely.",
    ),
    Talk(_SAID["thanks"], ("You are welcome!",), "The user thanks me. I answer politely."),
    Talk(_SAID["goodbye"], ("Goodbye! Have a nice day.",), "The user says goodbye. I do the same."),
    Talk(_SAID["praise"], ("Thank you, I am glad to hear that.",), "The user is pleased. I say thank you."),
    Talk(
        _SAID["agreement"],
        ("All right. What else can I do for you?",),
        "The user agrees. I ask what comes next.",
    ),
    Talk(
        _SAID["feeling"],
        ("Thank you for telling me. I am only a program, but I am here to chat.",),
        "The user tells me a feeling. I am kind.",
    ),
)
_TALK_WEIGHTS = (20, 15, 15, 14, 14, 12, 10)


def small_talk(source: Source) -> Exchange:
    """Greetings, thanks, goodbyes and the like."""
    (patterns, lines), answers, reasoning = source.rng.choices(TALK, _TALK_WEIGHTS)[0]
    if source.held_out:
        text = source.word(lines)
    elif source.chance(0.65):
        text = roughened(source, source.word(lines))
    else:
        text = source.expand(source.choice(patterns)) + source.choice(ENDS)
    return Exchange(text, source.choice(answers), reasoning)


def roughened(source: Source, text: str) -> str:
    """The text, sometimes in lower case, without its final mark, or with another one."""
    kind = source.rng.random()
    if kind < 0.2:
        text = text.lower()
    if kind < 0.1 or kind > 0.85:
        text = text.rstrip("?.!")
    return text + source.choice(ENDS) if kind > 0.92 else text


_REPEAT_PATTERNS = headed("repeat_patterns")
_REPEAT_HELD_OUT = (
    "{I want you to repeat|Would you repeat|Now repeat} this: $text",
    '{Please|Kindly} echo {the following|this text}: "$text"',
    "{Repeat after me word by word|Say exactly this}: $text",
    "{Tell me|Write down} the following: $text",
    '{Just repeat|Please say it after me}: "$text"',
)
# The usual patterns make many texts each, so they are as frequent as all rarer ones together.
_REPEAT = Pool((*_REPEAT_PATTERNS["usual"] * 9, *_REPEAT_PATTERNS["rarer"]), _REPEAT_HELD_OUT)


def repeat(source: Source) -> Exchange:
    """A request to repeat a text, and the same text."""
    text = values.any_text(source) if source.chance(0.8) else values.sentence(source, 16)
    pattern = source.word(_REPEAT)
    if source.chance(0.1):
        text = f"{text} {values.any_text(source)}"
    if not source.held_out and source.chance(0.25):
        text = values.number(source) if source.chance(0.4) else values.stuttered(source, text)
    request = source.expand(pattern).replace("\\n", "\n").replace("$text", text)
    return Exchange(request, text, "I repeat the text as it is.")


_COUNT_TO = phrases(
    """{Count|count|Please count|Can you count|Could you count|Now count|Count up} {to|up to|from 1 to|from one to} $to{|.|?|!| please| for me}
    {Count|Write|List|Say|Print|Give me} {the numbers|numbers|all numbers} {from 1 to|from one to|up to|to} $to{|.|!}
    {Numbers|Counting} {from 1 to|up to|to} $to{|.| please}
    {I want you to count|Let us count|I would like you to count} {to|up to|from 1 to} $to{|.}
    {Will you count|I'd like you to count|Please try and count|Let me hear you count|Let me see you count|Show me that you can count|Are you able to count|Do you know how to count|Start counting|Begin to count|Go on and count|Keep counting} {to|up to|till|until|from 1 to|from one to} $to{|.|?|!}
    {Name|Recite|Show|Show me|Tell me|Write down|Let me hear|Let me see|I want|I need|I would like|Could you give me|Enumerate} {all numbers|each number|every number|the whole numbers|the row of numbers} {from 1 to|from one to|up to|until|to} $to{|.|, please.}
    {What are|Which are|Can you say|Do you know} {all numbers|the numbers|all the numbers} {from 1 to|from one to|up to} $to{?|}
    {Up to|To|Until} $to{,|:} {count|please count|count for me|say the numbers|give me the numbers}{|.|, please.}
    {Count|count} {slowly|aloud|out loud|for me|quickly|by ones|please} {to|up to|from 1 to|until} $to{|.|!}
    {How do you count|How does one count|How would you count|How does counting go} {to|up to|from 1 to} $to{?|}""",
    """{Would you count|Try to count|Show me how you count} {to|up to} $to{.|?|}
    {Say every number|Recite the numbers} {from 1 to|up to} $to{.|}""",
)
_COUNT_FROM = phrases(
    """{Count|count|Please count|Can you count|Now count} from $from {to|up to|until} $to{|.|?| please}
    {Write|List|Say|Print|Give me} {the numbers|numbers|all numbers} from $from to $to{|.}
    {Will you count|Could you count|I want you to count|Let us count|Show me how you count|Let me hear you count|Start counting|Please try and count|Are you able to count|Begin to count|Count up|Count for me|Count aloud|I'd like you to count} from $from {to|up to|until|till} $to{|.|?|!}
    {Name|Recite|Show me|Tell me|Write down|Let me hear|I want|I need|Could you give me|Enumerate} {all numbers|each number|every number|the whole numbers|the row of numbers} from $from {to|up to|until} $to{|.|, please.}
    {Start at|Begin at|Begin with|Start with|Start from} $from {and count|and go on|and count up|and count on} {to|up to|until} $to{|.|, please.}
    {What are|Which are|Can you say|Do you know} {the numbers|all numbers|all the numbers} from $from {to|up to} $to{?|}
    {From|Starting at|Starting from|Beginning with} $from{,|} {count|please count|count on|count up|go on} {to|up to|until} $to{|.|!}
    {Numbers|Counting|The numbers|All numbers} from $from {to|up to|until} $to{|.|, please.|?}""",
    """{Would you count|Try to count} from $from to $to{.|?|}
    {Say every number|Recite the numbers} from $from to $to{.|}""",
)
_COUNT_DOWN = phrases(
    """{Count|count|Please count|Can you count|Now count} {down from|backwards from|back from} $from{| to 1| to one}{|.|?}
    {Countdown|countdown|A countdown} from $from{|.| please}
    {Will you count|Could you count|I want you to count|Let us count|Show me how you count|Let me hear you count|Start counting|Please try and count|Are you able to count|I'd like you to count|Begin to count|Count for me} {down from|backwards from|back from|downwards from} $from{| to 1| to one| until one}{|.|?|!}
    {Count|Go|Please count|Now go} {down|backwards|back|downwards} {starting at|beginning at|beginning with|starting from} $from{|.|!}
    {Give me|Show me|I want|I need|Do|Write|Run|Can you do|Let me hear|Let us have|Begin} a {countdown|count down} {from|that starts at|starting at|beginning with} $from{|.|, please.|!}
    {From|Starting at} $from {count|please count|count for me} {down|backwards|back}{| to 1| to one}{|.|!}
    {All numbers|The numbers|Numbers|Say the numbers|Write the numbers|Name the numbers|List the numbers} {from $from down to|from $from back to|backwards from $from to} {1|one}{|.|, please.}
    {Name|Recite|Say|Write|List} {the numbers|all numbers} {backwards|in reverse|downwards} from $from{| to 1| to one}{|.}""",
    """{Would you count|Try to count} {down|backwards} from $from{.|?|}
    {Start a countdown|Make a countdown} from $from{.|}""",
)


def _number_word(number: int) -> str:
    """A number up to 30 in words."""
    if number < 20:
        return _UP_TO_NINETEEN[number]
    tens = ("twenty", "thirty")[number // 10 - 2]
    return tens if number % 10 == 0 else f"{tens}-{_UP_TO_NINETEEN[number % 10]}"


_UP_TO_NINETEEN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()


_IN_DIGITS = phrases(
    """{Write|Say|Give me|Show me|Please write|Can you write|Spell} {the number |}$word {in digits|in figures|as a number|with digits}{|.|, please.|?}
    {What is|What's|How do you write|Which number is|Which digits are} {the number |}$word{| in digits| in figures| as a number}{?|}
    {$word as digits|$word in digits|the number $word}{|.|, please.|?}
    {Put|Change|Transform|Make|Rewrite|Express|Note} {the number |}$word {in digits|into digits|as digits|as a number|with figures}{|.|, please.|!}
    {How does one write|Show me how to write|I want to see|Tell me} {the number |}$word {in digits|with digits|as a figure|as a number}{|.|?}""",
    """{Turn|Convert} $word {into a number|into digits}{.|}""",
)


def _in_digits(source: Source) -> Exchange:
    """One or more number words, written with digits."""
    numbers = [source.rng.randrange(31) for _ in range(1 if source.held_out else source.choice((1, 1, 2, 3, 5, 8)))]
    words = [_number_word(number) for number in numbers]
    spelled = words[0] if len(words) == 1 else ", ".join(words[:-1]) + source.choice((" and ", ", ")) + words[-1]
    request = source.phrase(_IN_DIGITS, word=spelled)
    return Exchange(request, ", ".join(str(number) for number in numbers), "I write the number in digits.")


def count(source: Source) -> Exchange:
    """Counting to at most 30, up or down; sometimes number words to write in digits."""
    if source.chance(0.3):
        return _in_digits(source)
    kind = source.rng.random()
    if kind < 0.5:
        start, end, pattern = 1, source.rng.randrange(2, source.choice((13, 31))), _COUNT_TO
    elif kind < 0.85:
        start = source.rng.randrange(2, 25)
        end, pattern = source.rng.randrange(start + 1, min(31, start + source.choice((8, 29)))), _COUNT_FROM
    else:
        start, end, pattern = source.rng.randrange(2, 21), 1, _COUNT_DOWN
    step = 1 if end > start else -1
    numbers = ", ".join(str(number) for number in range(start, end + step, step))
    spoken = _number_word if source.chance(0.6) else str
    request = source.phrase(pattern, **{"from": spoken(start), "to": spoken(end)})
    return Exchange(request, numbers, f"I count from {start} to {end}.")


CATEGORIES: dict[str, tuple[str, ...]] = {
    "colours": ("red", "blue", "green", "yellow", "black", "white"),
    "colors": ("red", "blue", "green", "yellow", "black", "white"),
    "animals": ("dog", "cat", "horse", "bird", "fish", "mouse"),
    "fruits": ("apple", "banana", "orange", "pear", "cherry", "lemon"),
    "vegetables": ("carrot", "potato", "onion", "pea", "bean", "tomato"),
    "days": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"),
    "months": ("January", "February", "March", "April", "May", "June"),
    "cities": ("Paris", "London", "Berlin", "Rome", "Madrid", "Vienna"),
    "countries": ("France", "Italy", "Japan", "Brazil", "Kenya", "Canada"),
    "names": ("Anna", "Ben", "Clara", "David", "Emma", "Felix"),
    "planets": ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn"),
    "drinks": ("water", "tea", "coffee", "milk", "juice", "lemonade"),
    "sports": ("football", "tennis", "swimming", "running", "cycling", "chess"),
    "tools": ("hammer", "saw", "drill", "screwdriver", "knife", "file"),
    "numbers": ("one", "two", "three", "four", "five", "six"),
    "letters": ("a", "b", "c", "d", "e", "f"),
    "programming languages": ("Python", "C", "Java", "Rust", "Go", "Ruby"),
}
_LIST_KNOWN = phrases(
    """{List|list|Name|name|Tell me|Give me|Write|Say|Show me|Can you name|Can you list|Please list|Please name} $n {|different |common |nice }$what{|.|?|!| please}
    {I need|I want|I would like|Think of|What are|Which are|Find|Do you know|Could you name|Can you tell me|Would you list} $n {|different |common }$what{|.|?}
    {Tell me|Say|Give|Write down|I need} {the names of |}$n {|different }$what{|.|, please}
    {A list of|List of|Make a list of|Write a list of|Give me a list of} $n $what{|.| please}
    $n $what{, please|!|.|?|}
    {Could you list|Would you tell me|Would you write|Will you name|Can you give me|Can you think of|Could you think of|Could you tell me|Are you able to name|Try to name|May I hear|Let me see|Let me have|Let me read} $n {|different |common }$what{.|?|}
    {I'd like|I'd like to hear|I would like to see|I am looking for|We need|Help me find|Pick|Choose|Suggest|Mention|Enumerate|Collect|Present|Provide|Recommend} $n {|different |nice |common }$what{.|, please.|}
    {What are|What would be|Which are} $n {examples of|good|well known} $what{?|}
    {Make|Create|Prepare|Build|Would you write|Could you make|Can you make|Show me|Let me have|I would like} {a list of|a short list of|a list with|a bullet list of|a list that has} $n {|different |common }$what{.|?|, please.|}
    {Name me|Tell us|List for me|Write me|Say to me|Find me|Give us|I want the names of} $n $what{.|!|, please.|}
    {Find|Collect|Look for|Come and name|Bring me|Pick me|Tell us|Call out|Bring up|Put together|Write up} $n {|different |other |nice }$what{.|!|, please.|}
    {Which|What} $n $what {do you know|can you name|come to your mind|can you list|would you name}{?|}""",
    """{Could you give me|Let me hear|Would you name} $n $what{.|?|}
    {Read me the names of|Come up with} $n $what{.|}""",
)
_LIST_GIVEN = phrases(
    """{Make|Write|Create|Give me|Show|Please make|Can you make} {a list|a bullet list|bullet points|a shopping list|a list with bullets} {of|with|from|out of}{|:} $items{|.}
    {Write|Put|Show|List|Format|Turn|Make} {these|the following|this|these things|the words} {as|into} {a list|bullet points|a bullet list|bullets}: $items
    {I want|I would like|Please give me|Can I have|Could you write} {a list|a bullet list|bullets} {of|with|from} $items{.|?|}
    {List|list|Bullet points|As a list}: $items
    $items\\n{Make a list of that.|As a list, please.|Write that as a list.}
    {Could you make|Will you make|Would you write|Would you create|Please create|I'd like to have|Let me have|I want to see|Prepare|Build|Set up|Form|Can I get|Let me see} {a list|a bullet list|a list with bullets|bullet points} {of|from|out of|with}{|:} $items{.|?|}
    {Turn|Change|Convert|Transform|Make|Bring|Rewrite} {these|these words|these things|the following|the following words|what follows} into {a list|bullet points|a bullet list|a list with bullets}: $items
    {Show|Print|Display|Give|Present|Arrange|Write down|Put} {this|these words|what follows|the following things|the next words|it} as {a list|bullets|bullet points|a bullet list|a list with bullets}: $items
    {One bullet|One line|A bullet|A line} for each{| of these| of them| word| thing}: $items
    {Bullets|A list|Bullet list|List of things|As bullet points|In a list|For my list}: $items
    $items\\n{Make bullets of that.|Put that in a list.|Turn that into a list.|List these.|Now as bullet points.|I want that as a list.|One line for each, please.}
    {Take|Here are|I have|These are} {some things|some words|my things|the words}: $items. {Make a list.|List them.|Write them as a list.|Put them into a list.|Turn them into bullets.|Show them as bullets.}
    {Put|Write|Set} $items {into a list|in a list|as a list|as bullet points|on separate lines|one per line}{.|, please.|}""",
    """{Would you make|I need} {a list|a bullet list} of $items{.|?|}
    {Make bullets of this|Show me these things as a list}: $items""",
)


def make_list(source: Source) -> Exchange:
    """A list of known things, or of things that the user gives."""
    if source.chance(0.5):
        what = source.choice(tuple(CATEGORIES))
        n = source.rng.randrange(2, 7)
        items = list(CATEGORIES[what][:n])
        number = str(n) if source.chance(0.6) else _number_word(n)
        request = source.phrase(_LIST_KNOWN, n=number, what=what)
        reasoning = f"I name {n} {what}."
    else:
        n = source.rng.randrange(2, 6)
        items = [values.word(source) if source.chance(0.5) else values.common_word(source) for _ in range(n)]
        if source.chance(0.3):
            items = [values.phrase(source, 3) for _ in items]
        if source.chance(0.2):
            items = [values.first_name(source) for _ in items]
        joined = ", ".join(items)
        if source.chance(0.6):
            joined = ", ".join(items[:-1]) + " and " + items[-1]
        request = source.phrase(_LIST_GIVEN, items=joined).replace("\\n", "\n")
        reasoning = "I write each thing on a line."
    return Exchange(request, "\n".join(f"- {item}" for item in items), reasoning)


_SUMS = phrases(
    """{What is|What's|How much is|Calculate|Compute|what is|Tell me|Please calculate} $a {+|plus|and} $b{|?|.}
    $a {+|plus} $b{| =|?| = ?}
    {Add|add|Sum|Please add} $a {and|to|plus} $b{|.}
    {Can you add|Can you tell me|Could you compute|Do you know what is|What do I get for|What makes|What gives|I need|Say what is} $a {+|plus|and} $b{?|}
    $a {and|plus|+} $b {makes|is|gives|are} {what|how much}{?|}
    {What is the sum of|The sum of} $a and $b{|?}
    {Work out|Solve|Figure out|Give me|Can you calculate|Could you add|Would you add|Will you compute} $a {+|plus} $b{?|.|}
    {What do I get if I add|What is it when you add|What happens when I add} $a {and|to} $b{?|}
    {If I add|When I add} $a {and|to} $b, {what do I get|how much is it|what is the sum}{?|}
    {How many are|What are} $a {and|plus} $b{?| together?}""",
    """{Can you work out|Do you know} $a {+|plus} $b{?|}
    {What do you get for|What do you say is} $a plus $b?""",
)


def small_sum(source: Source) -> Exchange:
    """A sum of two one-digit numbers."""
    a, b = source.rng.randrange(10), source.rng.randrange(10)
    return Exchange(source.phrase(_SUMS, a=str(a), b=str(b)), f"{a} + {b} = {a + b}", f"I add {a} and {b}.")


I_CANNOT = "I am only a tiny demo model"
NEEDS_TOOL = "without a tool for that"


class Limit(NamedTuple):
    """Requests of one kind that are beyond the model, and the answer to them."""

    phrasings: Phrasings
    answer: str


_ASKED = written("limits")
LIMITS = (
    Limit(_ASKED["knowledge"], f"{I_CANNOT} and do not know that."),
    Limit(_ASKED["translation"], f"{I_CANNOT} and cannot translate."),
    Limit(_ASKED["writing"], f"{I_CANNOT} and cannot write that."),
    Limit(_ASKED["sums"], f"{I_CANNOT} and cannot do such sums."),
    Limit(_ASKED["outside"], f"{I_CANNOT} {NEEDS_TOOL}."),
)


def limits(source: Source) -> Exchange:
    """A request beyond the model, and a sentence that admits it."""
    (patterns, lines), answer = source.choice(LIMITS)
    reasoning = "I cannot do that. I say so."
    if source.held_out:
        return Exchange(source.word(lines), answer, reasoning)
    if source.chance(0.5):
        return Exchange(roughened(source, source.word(lines)), answer, reasoning)
    rng = source.rng
    thing = (
        values.phrase(source, 3)
        if source.chance(0.5)
        else source.choice((values.word, values.person, values.city))(source)
    )
    if source.chance(0.25):
        thing = source.choice(_FAMOUS)
    request = source.fill(
        source.choice(patterns),
        thing=thing,
        word=values.common_word(source),
        city=values.city(source),
        big=str(rng.randrange(11, 10_000)),
        large=str(rng.randrange(11, 1_000)),
        a=str(rng.randrange(2, 100)),
        b=str(rng.randrange(1, 100)),
    )
    return Exchange(request, answer, reasoning)


_FAMOUS = (
    "France",
    "Germany",
    "Japan",
    "Hamlet",
    "Einstein",
    "Napoleon",
    "the moon",
    "sun",
    "sky",
    "universe",
    "water",
    "love",
    "gravity",
    "quantum physics",
    "computer",
    "telephone",
    "World War",
    "the Louvre",
    "black hole",
    "machine learning",
    "Python",
    "Linux",
    "photosynthesis",
    "Shakespeare",
    "Rome",
    "elephant",
    "electricity",
    "the meaning of life",
    "atoms",
)


def nonsense(source: Source) -> Exchange:
    """A text without a meaning, or an empty one."""
    kind = source.rng.random()
    if kind < 0.12:
        return Exchange(
            source.choice(("", "", " ", "\n", "  ")),
            "Your message is empty. What can I do for you?",
            "The message is empty. I say so.",
        )
    makers = (
        values.odd_characters,
        values.symbols,
        values.foreign,
        values.word,
        values.code,
        values.any_text,
        values.phrase,
    )
    text = source.choice(makers)(source)
    if kind > 0.8:
        text = " ".join(values.any_text(source) for _ in range(source.rng.randrange(2, 6)))
    return Exchange(
        text, "I did not understand that. Can you say it in other words?", "I do not understand this. I say so."
    )


_LONG_TEXT = phrases(
    """{Here is a|This is a|Read this|Look at this|I have a} {text|long text|article|story|document|log}: $text
    $text
    {What do you think of this|What is this about|Summarise this|Summarize this text|Explain this|Comment on this}: $text
    $text\\n{What is this about?|What do you think?|Summarise that.|Explain it.|Please summarise.}
    {Could you read|I found|Somebody sent me|Here comes|Have a look at} {this|a text|this text|a long text}: $text
    $text\\n{What does it say?|Give me a summary.|Shorten this.|What do you make of it?}""",
    """{Take a look at the following|My report}: $text
    $text\\n{Can you sum it up?|Tell me what it says.}""",
)


def long_text(source: Source, n_sentences: int = 0) -> Exchange:
    """A pasted text that is too long for the model to understand."""
    n = n_sentences or source.rng.randrange(5, 25)
    text = values.passage(source, n)
    request = source.phrase(_LONG_TEXT, text=text).replace("\\n", "\n")
    return Exchange(
        request,
        f"That is a long text. {I_CANNOT} and cannot summarise it.",
        "This is a long text. I cannot summarise it.",
    )
