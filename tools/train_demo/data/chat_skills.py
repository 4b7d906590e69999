"""Single exchanges without tools: small talk, repeating, counting, lists, sums, honest refusals."""

# ruff: noqa: E501, SIM905  (phrasings and word lists are data, one per line)

from __future__ import annotations

from typing import NamedTuple

from . import values
from .source import Pool, Source, phrases


class Exchange(NamedTuple):
    """What the user says, what the model answers, and what it thinks before."""

    user: str
    answer: str
    thought: str


ENDS = ("", "", "", ".", "!", "?", " please", " :)", "...")

_GREETINGS = phrases(
    """{Hi|hi|Hello|hello|Hey|hey|Hi there|Hello there|Hey there|Hallo|hallo}
    {Good|good} {morning|evening|afternoon|day}
    {Hi|Hello|Hey} {bot|computer|assistant|friend|localchat|you|everyone|again|model}
    {Greetings|greetings|Howdy|Yo|Hiya|Welcome|Hi hi|helloo|HELLO|HI|hello world|Hello World}
    {Nice|Good|Great|Glad} to {meet|see} you
    {Hi|Hello|Hey}, {nice to meet you|I am here|I am new here|good morning|are you there|is anyone there|I just started you}
    {Is anybody there|Are you there|Anyone here|Are you awake|Can you hear me|you there}
    {Let's talk|Let us chat|I want to chat|Talk to me|Say hi|Say hello|Can we talk|Chat with me|Let us begin|I want to talk to you}
    {Hi|Hello|Hey|Good morning|Good evening|Hallo}{,|} {my |dear |little |old |}{friend|buddy|robot|machine|pal|mate|assistant|helper|chatbot|model|AI|stranger}
    {A|a} {good|nice|lovely|happy|wonderful} {morning|day|evening|afternoon}{| to you| to all}
    {Hello|Hi|Hey}, {is anybody here|anyone at home|is someone here|somebody there|knock knock|it is me|here I am|I am back|how nice to see you}
    {Pleased|Happy|Delighted|A pleasure} to {see|meet|know} you{| here| today}""",
    """{Hello my friend|Hey buddy|Hi robot|Hi, machine}
    {A good morning to you|Good morning, assistant|Good evening, bot}
    {Hello, anybody home|Hey, is someone there}
    {Hello hello|Pleased to meet you}""",
)
_HOW_ARE_YOU = phrases(
    """{How are you|how are you|How are you doing|How do you do|How is it going|How's it going|What's up|Whats up|sup}{| today| now| doing today}
    {Hi|Hello|Hey}{,|!|} {how are you|how are you doing|how is it going|what's up}{| today}
    {Are you well|Are you ok|Are you okay|Are you fine|You ok|Everything fine|All good|How do you feel|How have you been}
    {How are|How is|How goes} {things today|things going|your life|your work|everything going|all|it all}
    {And how|So how|Now how|Well, how} {are you|do you do|do you feel|is it going|are you doing}{| today}
    {Good evening|Good morning|Hello there|Hi there|Good day}{,|!} {how are you|how do you feel|how do you do|are you well|how is everything|how are things}{| now| today}
    {How is your day|How was your day|How's life|How is life|Are you feeling good|Are you happy}{| today}""",
    """{Good morning, how are you|Hey there, how are you doing today}
    {And how do you feel today|How is everything|How are things}""",
)
_THANKS = phrases(
    """{Thanks|thanks|Thank you|thank you|Thx|thx|Many thanks|Cheers|ty}{| a lot| so much| very much| for that| for your help| for the help| a bunch}
    {Great|Perfect|Good|Super|Nice|Wonderful|Cool|Okay|OK}, {thanks|thank you}{| a lot| so much}
    {That helped|That was helpful|That helps|You helped me|You are helpful|Very helpful}{|, thanks|, thank you| a lot}
    {Oh|Ah|Well|Excellent|Brilliant|Lovely|Great work}, {thanks|thank you|many thanks}{| indeed| so very much| for all}
    {Thanks|Thank you} {for all|for everything you did|for the answer|indeed|my friend|, that is great|, you are kind|, you are very good|, that was a good help|, a great help}
    {I thank you|I am grateful|Thanks again|Thank you again|Thanks, that is all|Thank you, that is all|Thanks, bot|Much appreciated|I appreciate it}""",
    """{Thank you very much indeed|Thanks, you are great|Oh, thanks}
    {Excellent, thank you|Thanks for everything|That was a big help, thanks}""",
)
_GOODBYES = phrases(
    """{Bye|bye|Goodbye|goodbye|Good bye|Bye bye|See you|see you|Ciao|Farewell|cya}{| later| soon| tomorrow| then| for now| bot}
    {Good night|good night|Have a nice day|Have a good day|Take care|Until next time|Until tomorrow|So long}
    {I have to go|I must go|I am leaving|I need to go|That is all|That's all|I am done|We are done|I'm off}{| now| for today|, bye|, goodbye}
    {Bye|Goodbye|See you|Good night}{,|} {my |dear |}{friend|robot|assistant|all|everybody|around|next time|again}
    {It is late|It is time to leave|I go home|I am going to bed|I leave now|I go to work|Work calls|Time for bed|I will go}{|, bye|, goodbye|, see you|, see you later|, good night}
    {Ok|Okay|Alright|Well}, {bye|goodbye|see you|good night}""",
    """{Bye for today|See you around|Goodbye my friend}
    {I am going home now, bye|Time to go, see you later}""",
)
_PRAISE = phrases(
    """{Great|great|Nice|nice|Cool|cool|Perfect|Wow|wow|Awesome|Super|Excellent|Amazing|Well done|Good job|Good work|Very good|Bravo}
    {You are|You're|that is|That is|That was|This is} {great|good|nice|cool|perfect|amazing|funny|smart|clever|fantastic|wonderful|the best}
    {I like|I love} {you|it|this|that|your answer|this program|localchat}
    {Haha|haha|lol|LOL|:)|;)|<3|Hehe|:-)|:D}
    {You|you} {answer well|did a good job|do that well|are a good bot|know a lot|are very nice|make me smile|are doing great}
    {I like how you|I love how you|I enjoy how you} {talk|speak|write|help|do this}
    {Good|Nice|Great|Fine|Lovely} {answer|bot|one|robot|joke|talk|model}
    {That|This|It} {works well|works very well|is really nice|is really great|is very good|looks good|makes me happy}""",
    """{That is really good|You did well|I like how you answer}
    {Nice work|You are wonderful|Good bot}""",
)
_AGREEMENT = phrases(
    """{Ok|OK|ok|okay|Okay|k|Alright|All right|Fine|fine|Sure|sure|Right|I see|Understood|Got it|Makes sense|Good to know}
    {Yes|yes|Yeah|yep|Yep|No|no|Nope|nope|Maybe|Of course|Exactly|Correct|True|Hm|hmm|Aha|Oh|oh}{| I see| ok| okay|}
    {Ok|Okay|Yes|Alright|Fine}, {I see|good|understood|fine|got it|go on|continue}
    {Ah|Oh|Aha|Hm|Well}{,|} {I see|okay|ok|I get it|yes|good|now I understand|right|all right|so that is it}
    {Sounds|Looks|Seems} {fine|right|ok|okay|reasonable|about right}
    {Okay|Ok|Fine|Good|Well} then""",
    """{Ah, I understand|Oh I see|Okay then}
    {Sounds good|Fair enough}""",
)
_LONGING = phrases(
    """{I am|I'm|I feel} {sad|happy|tired|bored|hungry|angry|lonely|sick|cold|excited|stressed|nervous|fine|well|ok}{| today| now| again}
    {I had a} {bad|good|hard|long|great|terrible} {day|week|morning|night}
    {Today|Now|This morning|Tonight|Right now|After work} {I am|I feel|I was|I felt} {sad|happy|tired|bored|angry|lonely|sick|stressed|a bit tired|so happy|a little sad|very bored|quite fine}
    {My|my} {day|week|morning|night|work} {was|is|has been} {bad|good|hard|long|great|terrible|awful|nice}
    {What a} {bad|hard|long|great|nice|terrible} {day|week|morning|night}{| it was| today}""",
    """{Today I am a bit sad|I feel so tired after work}
    {My day was bad|What a good day I had}""",
)

TALK: tuple[tuple[Pool, tuple[str, ...], str], ...] = (
    (_GREETINGS, ("Hello! How can I help you?", "Hi! What can I do for you?"), "The user greets me. I greet back."),
    (_HOW_ARE_YOU, ("I am fine, thank you. How can I help you?",), "The user asks how I am. I answer politely."),
    (_THANKS, ("You are welcome!",), "The user thanks me. I answer politely."),
    (_GOODBYES, ("Goodbye! Have a nice day.",), "The user says goodbye. I do the same."),
    (_PRAISE, ("Thank you, I am glad to hear that.",), "The user is pleased. I say thank you."),
    (_AGREEMENT, ("All right. What else can I do for you?",), "The user agrees. I ask what comes next."),
    (
        _LONGING,
        ("Thank you for telling me. I am only a program, but I am here to chat.",),
        "The user tells me a feeling. I am kind.",
    ),
)
_TALK_WEIGHTS = (30, 14, 18, 12, 9, 9, 6)


def small_talk(source: Source) -> Exchange:
    """Greetings, thanks, goodbyes and the like."""
    pool, answers, thought = source.rng.choices(TALK, _TALK_WEIGHTS)[0]
    return Exchange(source.phrase(pool) + source.choice(ENDS), source.choice(answers), thought)


_REPEAT = phrases(
    """{Repeat|repeat|Please repeat|Can you repeat|Repeat exactly} {after me|this|the following|these words|this text|what I say|the next words|this back to me}: $text
    {Say|say|Please say|Just say|Now say|Can you say|Write|Please write|Output|Print|Echo|echo|Type|Answer with|Reply with|Respond with}: $text
    {Say|say|Please say|Just say|Write|Print|Echo|echo|Repeat|repeat|Answer with|Reply with} "$text"
    {Say|say|Repeat|repeat|Echo|echo} $text
    {Repeat|Copy|Echo|Say|Write} {this|it|the text|the words|exactly this|the following text}{| word for word| again| exactly}: "$text"
    {Copy|Copy this|Copy the following|Give back|Send back|Return}: $text
    {I say|If I say} "$text"{, you repeat it|, now you|, repeat it|. Repeat that}.
    "$text" - {repeat that|say it again|please repeat|say that}
    $text\\n{Repeat the line above.|Say that again.|Repeat that.|Please repeat.}
    {Please |}repeat after me{:|,|} $text
    {Repeat|Say} the {word|words|phrase|sentence|text|line} {|: }$text""",
    """{I want you to repeat|Would you repeat|Now repeat} this: $text
    {Please|Kindly} echo {the following|this text}: "$text"
    {Repeat after me word by word|Say exactly this}: $text
    {Tell me|Write down} the following: $text
    {Just repeat|Please say it after me}: "$text\"""",
)


def repeat(source: Source) -> Exchange:
    """The user's text comes back unchanged."""
    text = values.any_text(source) if source.chance(0.8) else values.sentence(source, 16)
    pattern = source.word(_REPEAT)
    if source.chance(0.1):
        text = f"{text} {values.any_text(source)}"
    asked = source.expand(pattern).replace("\\n", "\n").replace("$text", text)
    return Exchange(asked, text, "I repeat the text as it is.")


_COUNT_TO = phrases(
    """{Count|count|Please count|Can you count|Could you count|Now count|Count up} {to|up to|from 1 to|from one to} $to{|.|?|!| please| for me}
    {Count|Write|List|Say|Print|Give me} {the numbers|numbers|all numbers} {from 1 to|from one to|up to|to} $to{|.|!}
    {Numbers|Counting} {from 1 to|up to|to} $to{|.| please}
    {I want you to count|Let us count|I would like you to count} {to|up to|from 1 to} $to{|.}""",
    """{Would you count|Try to count|Show me how you count} {to|up to} $to{.|?|}
    {Say all numbers|Recite the numbers} {from 1 to|up to} $to{.|}""",
)
_COUNT_FROM = phrases(
    """{Count|count|Please count|Can you count|Now count} from $from {to|up to|until} $to{|.|?| please}
    {Write|List|Say|Print|Give me} {the numbers|numbers|all numbers} from $from to $to{|.}""",
    """{Would you count|Try to count} from $from to $to{.|?|}
    {Say all numbers|Recite the numbers} from $from to $to{.|}""",
)
_COUNT_DOWN = phrases(
    """{Count|count|Please count|Can you count|Now count} {down from|backwards from|back from} $from{| to 1| to one}{|.|?}
    {Countdown|countdown|A countdown} from $from{|.| please}""",
    """{Would you count|Try to count} {down|backwards} from $from{.|?|}
    {Start a countdown|Make a countdown} from $from{.|}""",
)


def _number_word(number: int) -> str:
    """A number up to 30 as people write it."""
    if number < 20:
        return _UP_TO_NINETEEN[number]
    tens = ("twenty", "thirty")[number // 10 - 2]
    return tens if number % 10 == 0 else f"{tens}-{_UP_TO_NINETEEN[number % 10]}"


_UP_TO_NINETEEN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()


def count(source: Source) -> Exchange:
    """Counting up to 30, from another start, or down."""
    kind = source.rng.random()
    if kind < 0.65:
        start, end, pattern = 1, source.rng.randrange(2, 31), _COUNT_TO
    elif kind < 0.85:
        start = source.rng.randrange(2, 25)
        end, pattern = source.rng.randrange(start + 1, 31), _COUNT_FROM
    else:
        start, end, pattern = source.rng.randrange(2, 21), 1, _COUNT_DOWN
    step = 1 if end > start else -1
    numbers = ", ".join(str(number) for number in range(start, end + step, step))
    spoken = _number_word if source.chance(0.3) else str
    asked = source.phrase(pattern, **{"from": spoken(start), "to": spoken(end)})
    return Exchange(asked, numbers, f"I count from {start} to {end}.")


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
    $n $what{, please|!|.|?|}""",
    """{Could you give me|Let me hear|Would you name} $n $what{.|?|}
    {Tell me the names of|Come up with} $n $what{.|}""",
)
_LIST_GIVEN = phrases(
    """{Make|Write|Create|Give me|Show|Please make|Can you make} {a list|a bullet list|bullet points|a shopping list|a list with bullets} {of|with|from|out of}{|:} $items{|.}
    {Write|Put|Show|List|Format|Turn|Make} {these|the following|this|these things|the words} {as|into} {a list|bullet points|a bullet list|bullets}: $items
    {I want|I would like|Please give me|Can I have|Could you write} {a list|a bullet list|bullets} {of|with|from} $items{.|?|}
    {List|list|Bullet points|As a list}: $items
    $items\\n{Make a list of that.|As a list, please.|Write that as a list.}""",
    """{Would you make|I need} {a list|a bullet list} of $items{.|?|}
    {Turn this into bullets|Show these things as a list}: $items""",
)


def make_list(source: Source) -> Exchange:
    """A list of known things, or of things that the user gives."""
    if source.chance(0.5):
        what = source.choice(tuple(CATEGORIES))
        n = source.rng.randrange(2, 7)
        items = list(CATEGORIES[what][:n])
        number = str(n) if source.chance(0.6) else _number_word(n)
        asked = source.phrase(_LIST_KNOWN, n=number, what=what)
        thought = f"I name {n} {what}."
    else:
        n = source.rng.randrange(2, 6)
        items = [values.word(source) if source.chance(0.5) else source.choice(values.COMMON_WORDS) for _ in range(n)]
        if source.chance(0.3):
            items = [values.phrase(source, 3) for _ in items]
        if source.chance(0.2):
            items = [values.first_name(source) for _ in items]
        joined = ", ".join(items)
        if source.chance(0.6):
            joined = ", ".join(items[:-1]) + " and " + items[-1]
        asked = source.phrase(_LIST_GIVEN, items=joined).replace("\\n", "\n")
        thought = "I write each thing on a line."
    return Exchange(asked, "\n".join(f"- {item}" for item in items), thought)


_SUMS = phrases(
    """{What is|What's|How much is|Calculate|Compute|what is|Tell me|Please calculate} $a {+|plus|and} $b{|?|.}
    $a {+|plus} $b{| =|?| = ?}
    {Add|add|Sum|Please add} $a {and|to|plus} $b{|.}
    {Can you add|Can you tell me|Could you compute|Do you know what is|What do I get for|What makes|What gives|I need|Say what is} $a {+|plus|and} $b{?|}
    $a {and|plus|+} $b {makes|is|gives|are} {what|how much}{?|}
    {What is the sum of|The sum of} $a and $b{|?}""",
    """{Can you work out|Do you know} $a {+|plus} $b{?|}
    {What do you get for|What makes} $a plus $b?""",
)


def small_sum(source: Source) -> Exchange:
    """Sums of one-digit numbers, all hundred of them."""
    a, b = source.rng.randrange(10), source.rng.randrange(10)
    return Exchange(source.phrase(_SUMS, a=str(a), b=str(b)), f"{a} + {b} = {a + b}", f"I add {a} and {b}.")


I_CANNOT = "I am only a tiny demo model"
NEEDS_TOOL = "without a tool for that"
_LIMITS: tuple[tuple[Pool, str], ...] = (
    (
        phrases(
            """{What is|What's|Name|Tell me} the {capital|population|language|currency|president|flag|area|history|king|biggest city} of {the |}$thing{?|.|}
            {Who|who} {wrote|invented|discovered|painted|built|won|founded|was|killed|is} {the |a |}$thing{?|}
            {When|when} {was|did|is|were} {the |}$thing {born|built|end|start|begin|invented|founded|die|happen}{?|}
            {Why|why} {is|are|do|does} {the |}$thing {$word|so $word|blue|big|hot|work|exist|hot}{?|}
            {Explain|explain|Describe|Tell me about|What do you know about|Teach me|Define} {the |a |}$thing{.|?|}{| in detail| to me| in simple words}
            {What is|What are|What's|what is|What was|What were} {a |an |the |}$thing{?|}
            {How|how} {does|do|did|far is|big is|old is|tall is|many people live in} {the |a |}$thing{?| work?|}
            {Where is|Where are|Where can I find|Where was} {the |a |}$thing{?|}
            {Is|Are|Can|Does|Was} {the |a |}$thing {$word|$word or $word|better than $word|good}{?|}""",
            """{Which is the longest|What is the oldest} $thing in the world?
            {Give me some facts about|What can you say about} $thing{.|?|}
            {How come|What causes} {the |}$thing{?|}
            {Have you heard of|Do you know something about} {the |}$thing?""",
        ),
        f"{I_CANNOT} and do not know that.",
    ),
    (
        phrases(
            """{Translate|translate|Please translate|Can you translate} {"$thing"|$thing|this|the word $word|this text: $thing|the sentence "$thing"} {to|into} {French|German|Spanish|English|Italian|Chinese|Japanese|Latin|Russian}{.|?|}
            {How do you say|What is|How do I say|What's} {"$thing"|$thing|$word} in {French|German|Spanish|Italian|Chinese|Russian}{?|}
            {Speak|Answer in|Talk to me in|Can you speak|Do you speak} {French|German|Spanish|Italian|Chinese|Japanese|Russian}{?|.|}
            {Parlez-vous français|Sprechen Sie Deutsch|Sprichst du Deutsch|Hablas español|Parli italiano}?""",
            """{I need a translation of|Give me the translation of} {"$thing"|$thing} {to|into} {French|German|Spanish}{.|}
            {What does|What would} "$thing" {mean|be} in {French|German|Spanish}?""",
        ),
        f"{I_CANNOT} and cannot translate.",
    ),
    (
        phrases(
            """{Write|write|Compose|Make|Make up|Please write|Can you write|Create|Give me} {me |}{a|an|a short|a long|a funny|a nice} {poem|story|song|essay|letter|article|joke|haiku|tale|speech|novel|email|limerick|blog post|rap}{| about $thing| for my $word| about the $word}{.|?|}
            {Tell me|Sing me|Sing|Invent|tell me} {a|another|a good|a funny|a short} {joke|story|poem|song|riddle|tale}{| about $thing}{.|?|}
            {Write|Make|Create|Program|Code} {me |}{a|some} {program|code|function|script|website|app|Python code|Python function|class|game}{| that $thing| for $thing| to $thing| in Python| in C}{.|?|}
            {Summarise|Summarize|Shorten|Rewrite|Improve|Correct|Paraphrase|Review} {this|the text|this text|the following|my text}: $thing""",
            """{I want|I'd love} {a poem|a story|a song} about $thing{.|}
            {Could you come up with|Think up} a {joke|poem|story}{?|.}
            {Help me write|Draft} {a letter|an essay|a program}{| about $thing}{.|}""",
        ),
        f"{I_CANNOT} and cannot write that.",
    ),
    (
        phrases(
            """{What is|What's|How much is|Calculate|Compute|what is|Tell me} $big {+|plus|-|minus|*|times|x|/|divided by} $large{?|.|}
            $big {+|-|*|/|x} $large{| =|?| = ?}
            {What is|Calculate|Compute} the {square root|root|square|logarithm|half|double|sine} of $big{?|.|}
            {Solve|Solve the equation|Solve for x}{:|} $a x {+|-} $b = $large{|.}
            {What is|How much is} $a {percent of|% of|*|times|minus|-|/|divided by} $large{?|}
            {Is $big|Is the number $big} {prime|even|odd|a prime number}{?|}""",
            """{Can you work out|What do you get for} $big {times|minus|plus|divided by} $large?
            {Find|Give me} the square root of $big{.|}""",
        ),
        f"{I_CANNOT} and cannot do such sums.",
    ),
    (
        phrases(
            """{What is|What's|How is|How's|Tell me|Check} the {weather|temperature|forecast}{| in $city| today| like today| tomorrow| outside| now}{?|.|}
            {What time is it|What day is it|What is the date|What's the time|What is today's date|Which year is it|What's the date}{| now| today| in $city}{?|}
            {What is|Tell me|What's|Give me} {the news|the latest news|new in the world|happening in $city|the stock price of $thing|the score}{| today| now}{?|.|}
            {Search|search|Look|Browse|Google} {the web|the internet|online|the news}{| for $thing}{.|}
            {Open|Visit|Read|Download|Load|Look at|Fetch} {the website|the page|the file|the image|the link|https://$word.com|www.$word.org|$word.pdf}{.|}
            {Will it rain|Is it cold|Is it raining|Is it warm}{| today| tomorrow| in $city}{?|}
            {Send|Book|Order|Buy|Call|Email|Play|Set|Turn on} {an email to|a flight to|a table in|a pizza for|the light in|an alarm for|some music for|a taxi to} {$city|my $word|$word}{.|}""",
            """{Do you know the weather|Any idea what the weather is}{| in $city}?
            {Could you tell me the time|Do you have the time}{?| now?}
            {What happened in the news|Which news are there} today?""",
        ),
        f"{I_CANNOT} {NEEDS_TOOL}.",
    ),
)


def limits(source: Source) -> Exchange:
    """Things beyond the model: one honest sentence instead of an invention."""
    pool, answer = source.choice(_LIMITS)
    rng = source.rng
    thing = (
        values.phrase(source, 3)
        if source.chance(0.5)
        else source.choice((values.word, values.person, values.city))(source)
    )
    if source.chance(0.25):
        thing = source.choice(_FAMOUS)
    asked = source.phrase(
        pool,
        thing=thing,
        word=source.choice(values.COMMON_WORDS),
        city=values.city(source),
        big=str(rng.randrange(11, 10_000)),
        large=str(rng.randrange(11, 1_000)),
        a=str(rng.randrange(2, 100)),
        b=str(rng.randrange(1, 100)),
    )
    return Exchange(asked, answer, "I cannot do that. I say so.")


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
    "Mona Lisa",
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
    """Input without a meaning, or none at all."""
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
    $text\\n{What is this about?|What do you think?|Summarise that.|Explain it.|Please summarise.}""",
    """{Take a look at the following|My report}: $text
    $text\\n{Can you sum it up?|Tell me what it says.}""",
)


def long_text(source: Source, n_sentences: int = 0) -> Exchange:
    """A pasted text, longer than anything that the model could understand."""
    n = n_sentences or source.rng.randrange(5, 25)
    text = " ".join(values.sentence(source, 14) for _ in range(n))
    asked = source.phrase(_LONG_TEXT, text=text).replace("\\n", "\n")
    return Exchange(
        asked,
        f"That is a long text. {I_CANNOT} and cannot summarise it.",
        "This is a long text. I cannot summarise it.",
    )
