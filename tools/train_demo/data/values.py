"""Values that users mention: names, places, dates, numbers, codes, free text, other alphabets.

Most are made up of syllables or characters, so that a model must copy them and cannot learn them by heart.
"""

# ruff: noqa: SIM905  (long word lists read better as text than as list literals)

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from .source import Source, pool_by_checksum
from .words import WORDS

FIRST_NAMES = pool_by_checksum(
    "Ana,Ben,Clara,David,Elena,Farid,Grace,Hugo,Ines,Jonas,Kira,Liam,Mona,Nico,Olga,Pablo,Quinn,"
    "Rosa,Sam,Tara,Uwe,Vera,Will,Xenia,Yara,Zoe,Anna,Bruno,Chloe,Dario,Emma,Felix,Gina,Henry,Ida,"
    "Jack,Karin,Leo,Maria,Noah,Oscar,Paula,Ravi,Sofia,Tom,Ursula,Victor,Wanda,Yusuf,Zara,Alice,Bob,"
    "Carol,Dan,Eve,Frank,Heidi,Ivan,Judy,Kevin,Laura,Mike,Nina,Otto,Peter,Ruth,Steve,Tina,Max,Lucy,"
    "Amir,Bella,Carlos,Diana,Erik,Fatima,George,Hannah,Igor,Julia,Kofi,Lena,Mei,Nadia,Omar,Priya"
)
CITIES = pool_by_checksum(
    "Paris,London,Berlin,Madrid,Rome,Oslo,Vienna,Prague,Lisbon,Dublin,Athens,Warsaw,Tokyo,Kyoto,"
    "Osaka,Seoul,Delhi,Mumbai,Cairo,Lagos,Nairobi,Lima,Quito,Bogota,Boston,Chicago,Denver,Seattle,"
    "Austin,Toronto,Montreal,Sydney,Perth,Zurich,Geneva,Basel,Milan,Turin,Naples,Porto,Seville,"
    "Hamburg,Munich,Cologne,Bergen,Malmo,Helsinki,Riga,Sofia,Ankara,Izmir,Hanoi,Manila,Jakarta,"
    "New York,Los Angeles,San Diego,San Jose,Las Vegas,New Orleans,Salt Lake City,Rio de Janeiro,"
    "Sao Paulo,Buenos Aires,Mexico City,Cape Town,Tel Aviv,Hong Kong,Kuala Lumpur,Abu Dhabi,"
    "San Antonio,Santa Fe,Port Louis,Stockholm,Copenhagen,Brussels,Amsterdam,Budapest,Singapore,"
    "San Francisco,Bangkok,Dubai,Accra,Tunis"
)
REGIONS = ("CA", "NY", "TX", "WA", "MA", "France", "Spain", "Italy", "Japan", "Peru", "Kenya", "UK", "Germany")
COMMON_WORDS = (
    "red blue green small large old new fast slow warm cold river stone paper window garden table "
    "letter music bread water coffee train boat house road school market summer winter morning "
    "evening apple lemon honey salt sugar tiger horse bird fish cloud rain snow light shadow silver "
    "golden quiet happy tired open closed first last next meeting report plan list project team "
    "office call lunch dinner party ticket number answer question story picture book page line word "
    "mountain forest island bridge castle city village street door key lamp chair bottle basket "
    "doctor teacher farmer baker sailor pilot friend sister brother the a of and in on at for with "
    "is are was will be my your our this that we they you it please bring find keep send read write "
    "make take look walk run sleep wait start stop buy sell help learn play sing today tomorrow soon "
    "later never always again"
).split()

_ONSETS = "b c d f g h j k l m n p r s t v w z br ch cl cr dr fl gr kl ph pl pr sh sk sl sp st th tr".split()
_VOWELS = "a e i o u a e i o ai ea ee ia io oa ou".split()
_CODAS = ["", "", "", "", "l", "m", "n", "r", "s", "t", "x", "ck", "nd", "rt", "st"]
_TOP_DOMAINS = ("com", "org", "net", "io", "de", "fr", "co.uk", "edu", "example", "dev")
_MONTHS = "January February March April May June July August September October November December".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_NATIONS = "Greek Mexican Turkish French Indian Chinese Spanish Polish Korean Persian Danish Cuban Swiss Dutch".split()
_ROOMS = "kitchen,bedroom,bathroom,hall,garage,office,cellar,garden,attic,study,dining room,living room".split(",")
_ALPHABETS = (
    (0x0430, 0x044F),  # Cyrillic
    (0x03B1, 0x03C9),  # Greek
    (0x0561, 0x0586),  # Armenian
    (0x05D0, 0x05EA),  # Hebrew
    (0x0627, 0x064A),  # Arabic
    (0x0905, 0x0939),  # Devanagari
    (0x0E01, 0x0E2E),  # Thai
    (0x3042, 0x3093),  # Hiragana
    (0x30A2, 0x30F3),  # Katakana
    (0x4E00, 0x9FA5),  # Chinese characters
    (0xAC00, 0xD7A3),  # Hangul
    (0x00E0, 0x00FF),  # accented Latin
    (0x1F600, 0x1F64F),  # faces
    (0x1F300, 0x1F5FF),  # pictures
)


# Patterns of sentences. Each blank is replaced by a random word.
_PROSE = (
    "{The|A|Our|That} _ {came|went|fell|was put} {before|after|without|against} the _{ and the _|}.",
    "{After|During|Before} the _ the _ {grew|stopped|became _}, and we {found|lost|took} a _.",
    "{I|You|We|They} {did not see|wanted|asked for|never had} the _ {that|which} _ {made|brought|left}.",
    "If the _ {comes|breaks|is _}, {a|the|this} _ {must|may|should} be _ {by|for|with} the _.",
    "{My|His|Her|Their} _ was {as _ as|more _ than|less _ than} {a|the} _, {so|but|because} it {cost|took|gave} _.",
    "There {are|were} {two|five|few|some} _ {at|from|under} the _, {one of them|all|none} _.",
    "_ and _ {do|did} not {go|fit|live} together, {he|she|it} said, {although|while|since} the _ was _.",
)
_BLANK = re.compile(r"\b_\b")


def made_up_word(rng: random.Random) -> str:
    """A word of two or three syllables that no dictionary has."""
    n = rng.choice((2, 2, 2, 3))
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(n)) + rng.choice(_CODAS)


def word(source: Source) -> str:
    """A made-up word in lower case."""
    return source.made_up(made_up_word)


def compound(source: Source, words: Sequence[str]) -> str:
    """A new word: one of `words`, and the end of another one."""
    return source.choice(words) + source.choice(words)[-source.choice((2, 3, 4)) :]


def common_word(source: Source) -> str:
    """An English word; every second time one of the most frequent."""
    return source.choice(COMMON_WORDS if source.chance(0.5) else WORDS)


def first_name(source: Source) -> str:
    """A first name, real or made up."""
    return source.word(FIRST_NAMES) if source.chance(0.5) else word(source).capitalize()


def person(source: Source) -> str:
    """A first name, or first and last name."""
    name = first_name(source)
    return f"{name} {word(source).capitalize()}" if source.chance(0.4) else name


def city(source: Source) -> str:
    """A place of one to four words, sometimes with its region after a comma."""
    if source.chance(0.55):
        name = source.word(CITIES)
    else:
        name = word(source).capitalize()
        if source.chance(0.3):
            name = source.choice(("New ", "San ", "Port ", "Saint ", "Upper ", "El ", "Los ")) + name
    return f"{name}, {source.choice(REGIONS)}" if source.chance(0.2) else name


def email(source: Source) -> str:
    """An e-mail address."""
    name = word(source) if source.chance(0.5) else source.word(FIRST_NAMES).lower()
    if source.chance(0.5):
        name += source.choice("._-+") + word(source)
    if source.chance(0.2):
        name += str(source.rng.randrange(100))
    host = word(source) if source.chance(0.7) else source.choice(("example", "mail", "test", "acme"))
    return f"{name}@{host}.{source.choice(_TOP_DOMAINS)}"


def email_of(source: Source, name: str) -> str:
    """The e-mail address of a person."""
    parts = name.lower().split()
    forms = (".".join(parts), "_".join(parts), "".join(parts), parts[0], parts[-1], parts[0][0] + parts[-1])
    return f"{source.choice(forms)}@{email(source).split('@')[1]}"


def date(source: Source) -> str:
    """A date in one of the usual forms, or a day."""
    rng = source.rng
    year, month, day = rng.randrange(1990, 2040), rng.randrange(1, 13), rng.randrange(1, 29)
    name = _MONTHS[month - 1]
    forms = (
        f"{year}-{month:02}-{day:02}",
        f"{year}-{month:02}-{day:02}",
        f"{name} {day}",
        f"{day} {name}",
        f"{day} {name} {year}",
        f"{name} {day}, {year}",
        f"{day}.{month}.{year}",
        f"{month:02}/{day:02}/{year}",
        rng.choice(("today", "tomorrow", "tonight", "next week")),
        rng.choice(_DAYS),
        "next " + rng.choice(_DAYS),
    )
    return source.choice(forms)


def clock_time(source: Source) -> str:
    """A time of day."""
    hour, minute = source.rng.randrange(24), source.rng.randrange(60)
    forms = (f"{hour:02}:{minute:02}", f"{hour}:{minute:02}", f"{hour % 12 + 1} am", f"{hour % 12 + 1}pm", "noon")
    return source.choice(forms)


def integer(source: Source) -> int:
    """A whole number, small ones more often, sometimes negative."""
    number = source.rng.randrange(10 ** source.choice((1, 2, 2, 3, 4, 5, 6)))
    return -number if source.chance(0.08) else number


def decimal(source: Source) -> float:
    """A number with one to three decimals, sometimes negative."""
    digits = source.choice((1, 1, 2, 2, 3))
    number: float = source.rng.randrange(1, 10 ** source.choice((3, 4, 5))) / 10**digits
    return -number if source.chance(0.2) else number


def number(source: Source) -> str:
    """A number as text."""
    return str(decimal(source) if source.chance(0.6) else integer(source))


def stuttered(source: Source, text: str) -> str:
    """The text with a piece of it twice. A model easily continues its copy after the wrong one of the two."""
    start = source.rng.randrange(len(text))
    end = min(len(text), start + source.rng.randrange(1, 5))
    return text[:end] + text[start:]


def code(source: Source) -> str:
    """An identifier such as an order number."""
    rng = source.rng
    number = str(rng.randrange(10, 10 ** source.choice((3, 4, 5, 6, 8))))
    letters = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.choice((1, 2, 3))))
    mixed = "".join(rng.choice("0123456789ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.choice((5, 7, 9))))
    hexadecimal = "".join(rng.choice("0123456789abcdef") for _ in range(rng.choice((6, 8))))
    joined = letters + source.choice(("-", "")) + number
    forms = (number, number, joined, joined, f"{letters.lower()}_{number}", hexadecimal, mixed)
    return source.choice(forms)


def file_name(source: Source) -> str:
    """A file name, a path or a web address."""
    folder = word(source) if source.chance(0.5) else common_word(source)
    name = word(source) if source.chance(0.5) else common_word(source)
    ending = source.choice(("txt", "pdf", "py", "csv", "png", "json", "md"))
    number = source.rng.randrange(20)
    forms = (
        f"{name}.{ending}",
        f"{name}_{number}.{ending}",
        f"{folder}/{name}.{ending}",
        f"/{source.choice(('home', 'tmp', 'data', 'var/log'))}/{folder}/{name}.{ending}",
        f"/{folder}/{name}.{ending}",
        f"https://{name}.{source.choice(_TOP_DOMAINS)}/{word(source)}",
        f"www.{name}.{source.choice(_TOP_DOMAINS)}",
    )
    return source.choice(forms)


def small_number(source: Source) -> int:
    """A number of things."""
    return source.rng.randrange(1, source.choice((10, 31, 100, 500)))


def title(source: Source) -> str:
    """The name of a work or an event."""
    words = [word(source) if source.chance(0.25) else common_word(source) for _ in range(source.choice((1, 2, 2, 3)))]
    text = " ".join(word.capitalize() for word in words)
    return f"The {text}" if source.chance(0.2) else text


def full_name(source: Source) -> str:
    """First and last name."""
    return f"{first_name(source)} {word(source).capitalize()}"


def thing(source: Source) -> str:
    """A word for a thing, made up or not."""
    return word(source) if source.chance(0.3) else common_word(source)


def room(source: Source) -> str:
    """A room of a house."""
    return source.choice(_ROOMS) if source.chance(0.6) else thing(source)


def street(source: Source) -> str:
    """A house number and a street."""
    kind = source.choice(("Street", "Road", "Lane", "Square"))
    return f"{source.rng.randrange(1, 100)} {word(source).capitalize()} {kind}"


def nation(source: Source) -> str:
    """A nationality."""
    return source.choice(_NATIONS)


def origin(source: Source) -> str:
    """A word for the origin of a dish or a style, known or made up."""
    if source.chance(0.4):
        return nation(source)
    name = word(source) + source.choice(("", "an", "ish", "ese", "ian", "i"))
    return name.capitalize() if source.chance(0.8) else name


def phrase(source: Source, longest: int = 7) -> str:
    """A few unrelated words, some of them made up."""
    n = source.rng.randrange(2, longest + 1)
    return " ".join(word(source) if source.chance(0.3) else common_word(source) for _ in range(n))


def sentence(source: Source, longest: int = 10) -> str:
    """A phrase written as a sentence."""
    text = phrase(source, longest)
    if source.chance(0.15):
        text = text.replace(" ", ", ", 1)
    if source.chance(0.2):
        text += f" {integer(source)}"
    return text[0].upper() + text[1:] + source.choice(("", ".", ".", "!", "?"))


def prose(source: Source) -> str:
    """A sentence of English form without a meaning."""
    text = source.expand(source.choice(_PROSE))
    return _BLANK.sub(lambda _: common_word(source), text)


def passage(source: Source, n_sentences: int) -> str:
    """A long text of sentences of one kind; sometimes it repeats a few sentences."""
    make = source.choice((sentence, prose))
    n_different = source.choice((3, 6, n_sentences, n_sentences))
    different = [make(source) for _ in range(min(n_different, n_sentences))]
    return " ".join(different[i % len(different)] for i in range(n_sentences))


def foreign(source: Source) -> str:
    """One or two words in another alphabet, or pictures."""
    rng = source.rng
    low, high = rng.choice(_ALPHABETS)
    longest = 3 if low >= 0x3000 else 6
    return source.made_up(
        lambda _: " ".join(
            "".join(chr(rng.randrange(low, high + 1)) for _ in range(rng.randrange(1, longest + 1)))
            for _ in range(rng.choice((1, 1, 2)))
        )
    )


def odd_characters(source: Source) -> str:
    """Random Unicode characters, so that the token of every byte is trained."""
    rng = source.rng
    top = rng.choice((0x7F, 0xFF, 0x7FF, 0xFFFF, 0x10FFFF))
    codes = (rng.randrange(0x21, top) for _ in range(rng.randrange(1, 7)))
    return "".join(chr(c) for c in codes if not 0xD800 <= c < 0xE000 and c != 0x7F) or "~"


def symbols(source: Source) -> str:
    """Random printable ASCII characters."""
    return "".join(chr(source.rng.randrange(0x21, 0x7F)) for _ in range(source.rng.randrange(2, 10)))


_TEXTS: tuple[tuple[float, Callable[[Source], str]], ...] = (
    (0.22, phrase),
    (0.20, sentence),
    (0.10, word),
    (0.06, person),
    (0.06, city),
    (0.06, email),
    (0.05, date),
    (0.05, code),
    (0.05, file_name),
    (0.08, foreign),
    (0.04, odd_characters),
    (0.03, symbols),
)


def any_text(source: Source) -> str:
    """A value of any kind, as text."""
    at = source.rng.random() * sum(share for share, _ in _TEXTS)
    for share, make in _TEXTS:
        at -= share
        if at < 0:
            return make(source)
    return phrase(source)
