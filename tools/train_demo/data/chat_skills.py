"""Single exchanges without tools: small talk, repeating, counting, lists, sums, honest refusals."""

# ruff: noqa: E501, SIM905  (phrasings and word lists are data, one per line)

from __future__ import annotations

from typing import NamedTuple

from . import values
from .source import Pool, Source, phrases, written


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
    {Pleased|Happy|Delighted|A pleasure} to {see|meet|know} you{| here| today}
    {Is somebody|Is anyone|Is someone|Somebody|Anyone|Anybody} {there|here|around|at home|listening|in}{| today| right now}
    {Good to|Nice to|Lovely to|Great to} {see you again|be here|be back|meet you here|have you here|see you too}
    {Knock knock|Ahoy|Hey ho|Hi everybody|Hello all|Hello to you|Hi to you too|Hey hey|Morning|Evening|Top of the morning|What a nice surprise}
    {I am|I'm} {back|here|here again|ready to talk|ready to chat}{| now}
    {Hello|Hi|Hey|Hallo|Yo}{,|!|} {anybody|anyone|someone|somebody} {here|there|around|in|awake|listening|in there}
    {Hello|Hi|Hey|Good morning|Good afternoon} {dear machine|old friend|little model|my dear|sir|madam|fellow|over there|in there|down there}
    {Shall we|Can we|May we|Could we|Let us|Let's} {talk|chat|begin|start|have a chat|talk a little|get to know each other}
    {May I|Can I|I would like to|I'd like to|I just want to} {say hello|say hi|greet you|talk with you|chat a bit|have a word with you}
    {Lovely|Good|Great|Fine|A joy|A pleasure|How nice} {meeting|seeing|talking to|knowing|to be meeting} you{| here| too| today}
    {So good|So nice|Good|Great|Lovely|Fine|How lovely} {to be meeting you|to have met you|having you here|to make your acquaintance|talking with you|to be talking to you}{|!| now}
    {Meeting you|Seeing you here|Talking to you} is {nice|lovely|a pleasure|great}
    {Hello|Hi|Hey|Hallo|Good morning}{,|!} {is anybody in|anybody in|somebody home|who is home|who is at home|are you home|is there anybody|any life in there}
    {Do you hear me|Are you listening|Hello, do you hear me|Do you read me|Are you here|Are you around|Are you with me|Can you read this}
    {Hello computer friend|Hey there buddy|Hi you robot|Hi, dear program}
    {Good morning to you|Good evening to you, bot|A hearty hello}
    {Hello, anybody home|Hey, is someone there}
    {Hello hello|Nice meeting you}""",
)
_HOW_ARE_YOU = phrases(
    """{How are you|how are you|How are you doing|How do you do|How is it going|How's it going|What's up|Whats up|sup}{| today| now| doing today}
    {Hi|Hello|Hey}{,|!|} {how are you|how are you doing|how is it going|what's up}{| today}
    {Are you well|Are you ok|Are you okay|Are you fine|You ok|Everything fine|All good|How do you feel|How have you been}
    {How are|How is|How goes} {things today|things going|your life|your work|everything going|all|it all}
    {And how|So how|Now how|Well, how} {are you|do you do|do you feel|is it going|are you doing}{| today}
    {Good evening|Good morning|Hello there|Hi there|Good day}{,|!} {how are you|how do you feel|how do you do|are you well|how is everything|how are things}{| now| today}
    {How is your day|How was your day|How's life|How is life|Are you feeling good|Are you happy}{| today}
    {How does|How did} {your day go|it go|your week go|your morning go|life treat you}{| today| so far}
    Are you {doing well|doing fine|all right|in a good mood|feeling well|doing okay}{| today}
    {I hope|Hopefully} {you are well|you are fine|all is well|you feel good|everything is fine}{| today}
    Is {everything all right|all well|your day good|life good|all fine}{| with you| today}
    {Tell me|Say|I want to know|I wonder|May I ask} {how you are|how you feel|how it goes|how you are doing|how your day is}{| today}
    {What about you|And you|And yourself|How about you|What is up|What's new|What is new|Anything new}{| today}
    {What is|How is} {your mood|your morning|your evening|your afternoon}{| today| right now| so far}
    {How are you this morning|Hey there, how are you doing today}
    {How do you feel this evening|How is everything|How are things}""",
)
_THANKS = phrases(
    """{Thanks|thanks|Thank you|thank you|Thx|thx|Many thanks|Cheers|ty}{| a lot| so much| very much| for that| for your help| for the help| a bunch}
    {Great|Perfect|Good|Super|Nice|Wonderful|Cool|Okay|OK}, {thanks|thank you}{| a lot| so much}
    {That helped|That was helpful|That helps|You helped me|You are helpful|Very helpful}{|, thanks|, thank you| a lot}
    {Oh|Ah|Well|Excellent|Brilliant|Lovely|Great work}, {thanks|thank you|many thanks}{| indeed| so very much| for all}
    {Thanks|Thank you} {for all|for everything you did|for the answer|indeed|my friend|, that is great|, you are kind|, you are very good|, that was a good help|, a great help}
    {I thank you|I am grateful|Thanks again|Thank you again|Thanks, that is all|Thank you, that is all|Thanks, bot|Much appreciated|I appreciate it}
    {That is|That's|This is|That was} {very kind|so kind|kind of you|a great help|just what I needed|exactly what I needed|nice of you}{|, thanks|, thank you}
    {I am|I'm} {very grateful|so grateful|thankful|much obliged|in your debt}{| to you| for that| for your help}
    {What would I do without you|You saved me|You saved my day|You made my day|I owe you one|How kind|How kind of you|Bless you|A thousand thanks|Thanks a million|Big thanks|Warm thanks|All my thanks}
    {My thanks|My best thanks|Lots of thanks|Thank you once more|Thanks once more}{| to you| for it| for today}
    {Thanks|Thank you}{|,} {for your time|for your answer|for telling me|for explaining|for doing that|dear bot|friend|it worked|now I know|I got it}
    {You were|You have been|You are} {a great help|so helpful|really helpful|of great help}{|, thanks| today}
    {Thank you very much indeed|Thanks, you are great|Oh thanks for this}
    {Excellent, thanks for it|Thanks for everything|That was a big help, thanks}""",
)
_GOODBYES = phrases(
    """{Bye|bye|Goodbye|goodbye|Good bye|Bye bye|See you|see you|Ciao|Farewell|cya}{| later| soon| tomorrow| then| for now| bot}
    {Good night|good night|Have a nice day|Have a good day|Take care|Until next time|Until tomorrow|So long}
    {I have to go|I must go|I am leaving|I need to go|That is all|That's all|I am done|We are done|I'm off}{| now| for today|, bye|, goodbye}
    {Bye|Goodbye|See you|Good night}{,|} {my |dear |}{friend|robot|assistant|all|everybody|around|next time|again}
    {It is late|It is time to leave|I go home|I am going to bed|I leave now|I go to work|Work calls|Time for bed|I will go}{|, bye|, goodbye|, see you|, see you later|, good night}
    {Ok|Okay|Alright|Well}, {bye|goodbye|see you|good night}
    {I|Now I} {have to leave|must leave|should go|will leave you|am off|say goodbye|am out|need some sleep|go to sleep|close the terminal}{| now| then|, bye|, good night|, see you}
    {Talk to you|Speak to you|See you|Catch you|Until} {later|soon|next week|on Monday|then|another time}
    {That was all|That will be all|Enough for today|No more questions|Nothing more for today|We are finished|That was it|This is the end}{|, bye|, goodbye|, good night}
    {Sleep well|Stay well|Keep well|All the best|Best wishes|Have fun|Enjoy your day|Enjoy your evening|Have a good night|Have a nice evening|Have a good weekend|Sweet dreams|Adieu|Au revoir}
    {My bus comes|Dinner is ready|My train leaves|School starts|I am late|I am tired|My battery is low}, {bye|goodbye|see you|I must go|I have to go}
    {Let us|Let's} {end here|call it a day|talk again tomorrow|leave it there|meet again tomorrow|say goodbye}
    {Bye for today|See you another day|Goodbye and good luck}
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
    {That|This|It} {works well|works very well|is really nice|is really great|is very good|looks good|makes me happy}
    {What a|Such a} {good|great|nice|clever|lovely|helpful|fine} {answer|bot|program|machine|model|reply|idea|little model}
    {You|you} {are really good|are so clever|are very good at this|did great|got it right|are quick|are very fast|work well|were right|are better than I thought|make me laugh|are fun|do a good job}
    {I am|I'm} {impressed|amazed|pleased with you|happy with you|a fan of you|glad that you exist|glad to have you}
    {That|This|It|Your answer} {was great|was perfect|was right|is correct|is impressive|is funny|was quick|was a good answer|is exactly right|made me smile|was well done}
    {I|We} {like|love|enjoy|admire} {your style|your answers|talking to you|chatting with you|how fast you are|this bot|this little program|what you do}
    {Keep it up|Keep going like that|Splendid|Marvellous|Brilliant|Fabulous|Terrific|Hurray|Yay|Top|Respect|Hats off|Impressive|Not bad|Very clever|Very nice|How clever|How nice|Well answered|Nicely done}
    {That is really good|You did well|I like how you answer}
    {Nice work|You are a wonder|You did good work}""",
)
_AGREEMENT = phrases(
    """{Ok|OK|ok|okay|Okay|k|Alright|All right|Fine|fine|Sure|sure|Right|I see|Understood|Got it|Makes sense|Good to know}
    {Yes|yes|Yeah|yep|Yep|No|no|Nope|nope|Maybe|Of course|Exactly|Correct|True|Hm|hmm|Aha|Oh|oh}{| I see| ok| okay|}
    {Ok|Okay|Yes|Alright|Fine}, {I see|good|understood|fine|got it|go on|continue}
    {Ah|Oh|Aha|Hm|Well}{,|} {I see|okay|ok|I get it|yes|good|now I understand|right|all right|so that is it}
    {Sounds|Looks|Seems} {fine|right|ok|okay|reasonable|about right}
    {Okay|Ok|Fine|Good|Well} then
    {Alright|All right|Right|Very well|So be it|Yes|Sure} then
    {Fair|Good enough|Well enough|Clear enough|Close enough|That is fair|Seems fair|Only fair|Fair point|Good point|Good plan|Good idea|True enough|Easy enough|Simple enough}{|, ok|, then| then}
    {I understand|I get it|I see it now|I know|I agree|I think so|I think so too|I suppose so|I believe you|I hear you|I follow you|Now I see|Now I get it|Now it is clear|It is clear now|That is clear|All clear}{|, ok|, good}
    {That|This|It} {makes sense|is fine|is fine with me|is okay|is all right|is clear|will do|is good enough|works for me|is how I see it|is true|seems right}
    {No problem|Never mind|No worries|Not yet|Not now|Not really|Maybe later|Perhaps|Probably|Possibly|Certainly|Definitely|Absolutely|Indeed|Agreed|Deal|Done|As you like|As you wish|If you say so|Why not|Go on|Go ahead|Please go on|Carry on|Next|Continue}
    {Fine|Good|Okay|Great|Sure|Yes|Right}{,|} {by me|with me|that will do|let us go on|so let us continue|no problem|as you say|that is clear|agreed}
    {Good|Nice|Interesting|Useful|Fine|Great} to {hear|know that|hear that|learn|learn that}
    {That is|That's|It is|Seems|Sounds|Well, that is|Yes,|Ok,|Okay,} fair{| to me| I think| then| indeed| in a way}
    {Fair point|Fair answer|Fair, fair|Very fair|Quite fair|A fair answer|Fair deal|All fair|Fair}{|, yes| then|, I agree|, let us go on}
    {Good|Clear|True|Right|Near|Nice|Safe} enough{| for me| I think| indeed| for today}
    {Sounds|Looks|Seems} {great|nice|sensible|like a plan|good to me|clear|easy}{|, go on|, yes| then}
    {Ah, I understand|Oh, is that so|Okay, let it be so}
    {Sounds good|Fair enough}""",
)
_LONGING = phrases(
    """{I am|I'm|I feel} {sad|happy|tired|bored|hungry|angry|lonely|sick|cold|excited|stressed|nervous|fine|well|ok}{| today| now| again}
    {I had a} {bad|good|hard|long|great|terrible} {day|week|morning|night}
    {Today|Now|This morning|Tonight|Right now|After work} {I am|I feel|I was|I felt} {sad|happy|tired|bored|angry|lonely|sick|stressed|a bit tired|so happy|a little sad|very bored|quite fine}
    {My|my} {day|week|morning|night|work} {was|is|has been} {bad|good|hard|long|great|terrible|awful|nice}
    {What a} {bad|hard|long|great|nice|terrible} {day|week|morning|night}{| it was| today}
    {I am|I'm|I feel} {so|very|really|a bit|a little|quite|rather|terribly} {sad|happy|tired|bored|angry|lonely|sick|stressed|nervous|excited|hungry|proud|afraid|worried|unhappy|exhausted}{| today| now| tonight| this week| after school}
    {I am|I'm|I feel} {not well|not so good|down|blue|lost|alone|ill|worn out|under the weather|in a bad mood|in a good mood|full of joy|in love}{| today| again}
    {I have|I've got} {a headache|a cold|too much work|no friends|no energy|trouble sleeping|a bad mood|a lot of stress|exams tomorrow|nothing to do}{| again| at the moment}
    {I could not sleep|I did not sleep well|I lost my job|I failed my exam|I passed my exam|I won a prize|I miss my family|I miss my dog|My cat is ill|My friend is gone|Nobody likes me|Everything goes wrong|Life is hard|Life is good to me|I had a fight with my friend}
    {It was|It is|This is|That was} a {bad|hard|long|great|terrible|awful|lovely|sad|tiring} {day|week|morning|night|evening|year}{| for me| at work}
    {Work|School|My job|My week|The meeting|My exam} {was|is} {hard|terrible|awful|boring|tiring|great|exhausting|too much}{| today| again}
    {Today I am a bit sad|I feel so tired after work}
    {My day was not good|What a good day I had}""",
)


class Talk(NamedTuple):
    """Small talk of one kind: patterns and written lines that call for it, answers, and the thought."""

    templates: Pool
    written: Pool
    answers: tuple[str, ...]
    thought: str


_WRITTEN_TALK = written("talk")
TALK: tuple[Talk, ...] = (
    Talk(
        _GREETINGS,
        _WRITTEN_TALK["greeting"],
        ("Hello! How can I help you?", "Hi! What can I do for you?"),
        "The user greets me. I greet back.",
    ),
    Talk(
        _HOW_ARE_YOU,
        _WRITTEN_TALK["how are you"],
        ("I am fine, thank you. How can I help you?",),
        "The user asks how I am. I answer politely.",
    ),
    Talk(_THANKS, _WRITTEN_TALK["thanks"], ("You are welcome!",), "The user thanks me. I answer politely."),
    Talk(_GOODBYES, _WRITTEN_TALK["goodbye"], ("Goodbye! Have a nice day.",), "The user says goodbye. I do the same."),
    Talk(
        _PRAISE,
        _WRITTEN_TALK["praise"],
        ("Thank you, I am glad to hear that.",),
        "The user is pleased. I say thank you.",
    ),
    Talk(
        _AGREEMENT,
        _WRITTEN_TALK["agreement"],
        ("All right. What else can I do for you?",),
        "The user agrees. I ask what comes next.",
    ),
    Talk(
        _LONGING,
        _WRITTEN_TALK["feeling"],
        ("Thank you for telling me. I am only a program, but I am here to chat.",),
        "The user tells me a feeling. I am kind.",
    ),
)
_TALK_WEIGHTS = (30, 14, 18, 12, 9, 9, 6)


def small_talk(source: Source) -> Exchange:
    """Greetings, thanks, goodbyes and the like."""
    templates, lines, answers, thought = source.rng.choices(TALK, _TALK_WEIGHTS)[0]
    if source.held_out:
        said = source.word(lines)
    elif source.chance(0.5):
        said = roughened(source, source.word(lines))
    else:
        said = source.phrase(templates) + source.choice(ENDS)
    return Exchange(said, source.choice(answers), thought)


def roughened(source: Source, text: str) -> str:
    """The text as it is or as hasty people type it: in small letters, without its mark, with another one."""
    kind = source.rng.random()
    if kind < 0.2:
        text = text.lower()
    if kind < 0.1 or kind > 0.85:
        text = text.rstrip("?.!")
    return text + source.choice(ENDS) if kind > 0.92 else text


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
    {Repeat|Say} the {word|words|phrase|sentence|text|line} {|: }$text
    {Could you|Will you|I'd like you to|I ask you to|You should|You have to|Let me hear you} {repeat|say|echo|copy|write} {this|the following|these words|this line|what comes now|this text}: $text
    {Tell me|Say to me|Give me|Read me|Read out|Say aloud} {these words|this line|what follows|the next words|the words|this text|exactly this}: $text
    {Your answer should be|Your answer is|Answer only with|Reply only with|Reply exactly|Answer exactly|Send me back|Give me back|Hand back}: {$text|"$text"}
    {Here is|Take|This is} {a text|a line|a sentence|something|some words} {to repeat|to echo|to copy|that you repeat|to say after me}: $text
    {Echo|Repeat|Copy|Say|Write|Print|Type} {it back|it once more|the same|back|word by word|letter by letter|without changes|unchanged|as it is}: {$text|"$text"}
    {Say after me|Speak after me|Follow me|Do as I do|Parrot this|Be my echo|Play echo|Mirror this|Quote this|Quote me|Read this out|Read out loud|Read aloud}: {$text|"$text"}
    "$text" {is what you should say|is your answer|is the text to repeat|should come back|is what I want to hear}.
    {Please |Now |}{say|repeat|echo|write|copy|type} {after me|exactly|once|again|only|just}: {$text|"$text"}
    {Note|Put down|Write out|Note down|Spell out|Set down|Put in writing|Write|Write for me} {this|the words|what I say|these words|this line|what follows|this sentence}: {$text|"$text"}
    {Give me back|Tell me again|Tell me once more|Tell us|Let me read|Let me hear|Show me} {this|the words|the next line|what I say|these words|this sentence}: {$text|"$text"}
    $text\\n{Echo that.|Copy that.|Now you say it.|Write the line above again.|Send that back.|The same again, please.}""",
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
    """A number up to 30 as people write it."""
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
    said = words[0] if len(words) == 1 else ", ".join(words[:-1]) + source.choice((" and ", ", ")) + words[-1]
    asked = source.phrase(_IN_DIGITS, word=said)
    return Exchange(asked, ", ".join(str(number) for number in numbers), "I write the number in digits.")


def count(source: Source) -> Exchange:
    """Counting up to 30, from another start, or down; sometimes number words in digits."""
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
        asked = source.phrase(_LIST_KNOWN, n=number, what=what)
        thought = f"I name {n} {what}."
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
        asked = source.phrase(_LIST_GIVEN, items=joined).replace("\\n", "\n")
        thought = "I write each thing on a line."
    return Exchange(asked, "\n".join(f"- {item}" for item in items), thought)


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
    """Sums of one-digit numbers, all hundred of them."""
    a, b = source.rng.randrange(10), source.rng.randrange(10)
    return Exchange(source.phrase(_SUMS, a=str(a), b=str(b)), f"{a} + {b} = {a + b}", f"I add {a} and {b}.")


I_CANNOT = "I am only a tiny demo model"
NEEDS_TOOL = "without a tool for that"


class Limit(NamedTuple):
    """Requests of one kind that are beyond the model, and the answer to them."""

    templates: Pool
    written: Pool
    answer: str


_WRITTEN_LIMITS = written("limits")
LIMITS: tuple[Limit, ...] = (
    Limit(
        phrases(
            """{What is|What's|Name|Tell me} the {capital|population|language|currency|president|flag|area|history|king|biggest city} of {the |}$thing{?|.|}
            {Who|who} {wrote|invented|discovered|painted|built|won|founded|was|killed|is} {the |a |}$thing{?|}
            {When|when} {was|did|is|were} {the |}$thing {born|built|end|start|begin|invented|founded|die|happen}{?|}
            {Why|why} {is|are|do|does} {the |}$thing {$word|so $word|blue|big|hot|work|exist|hot}{?|}
            {Explain|explain|Describe|Tell me about|What do you know about|Teach me|Define} {the |a |}$thing{.|?|}{| in detail| to me| in simple words}
            {What is|What are|What's|what is|What was|What were} {a |an |the |}$thing{?|}
            {How|how} {does|do|did|far is|big is|old is|tall is|many people live in} {the |a |}$thing{?| work?|}
            {Where is|Where are|Where can I find|Where was} {the |a |}$thing{?|}
            {Is|Are|Can|Does|Was} {the |a |}$thing {$word|$word or $word|better than $word|good}{?|}
            {Which|What} is the {biggest|smallest|highest|best|fastest|deepest|richest|newest|most famous} {$thing|city|river|mountain|country|animal|building} {in the world|on earth|of all|in Europe|of all time}{?|}
            {Tell me|Give me|I need|I want|Show me|Could you give me} {something|a fact|facts|some information|details|everything} about {the |}$thing{.|?|, please.|}
            {Do you know|Have you heard|Have you read} {anything about|anything of|much about} {the |}$thing{?|}
            {What is the reason for|What is the cause of|What leads to|What made|What happened to|What comes after|What comes before} {the |}$thing{?|}
            {How many people|How many things|How many countries|How much money|How much water} {are in|are there in|belong to|has|fit into} {the |}$thing{?|}
            {I want to know|I would like to know|I wonder|Could you tell me|Can you tell me|Do you know} {who invented|who wrote|where they found|when they built|why people like|what is meant by|how big is|how to cook|how old is} {the |a |}$thing{?|.|}
            {What do you think|What is your opinion|What do people say} {about|of} {the |}$thing{?|}
            {Recommend|Suggest|Help me find} {me |}{a good|a nice|a cheap} {book|film|restaurant|hotel|$word} {about $thing|in $city|for my $word}{.|, please.|}""",
            """{Which is the longest|What is the oldest} $thing in the world?
            {Give me some facts about|What can you say about} $thing{.|?|}
            {How come|What causes} {the |}$thing{?|}
            {Have you heard of|Do you know something about} {the |}$thing?""",
        ),
        _WRITTEN_LIMITS["knowledge"],
        f"{I_CANNOT} and do not know that.",
    ),
    Limit(
        phrases(
            """{Translate|translate|Please translate|Can you translate} {"$thing"|$thing|this|the word $word|this text: $thing|the sentence "$thing"} {to|into} {French|German|Spanish|English|Italian|Chinese|Japanese|Latin|Russian}{.|?|}
            {How do you say|What is|How do I say|What's} {"$thing"|$thing|$word} in {French|German|Spanish|Italian|Chinese|Russian}{?|}
            {Speak|Answer in|Talk to me in|Can you speak|Do you speak} {French|German|Spanish|Italian|Chinese|Japanese|Russian}{?|.|}
            {Parlez-vous français|Sprechen Sie Deutsch|Sprichst du Deutsch|Hablas español|Parli italiano}?
            {Could you|Would you|Will you|I want you to|Help me to|Are you able to} {translate|put|turn} {"$thing"|$thing|this sentence|the word $word|my letter|this page} {to|into} {French|German|Spanish|English|Italian|Chinese|Japanese|Latin|Russian}{.|?|}
            {How would you say|How does one say|How do they say|How can I say|What's the word for|What is the word for|Tell me the word for} {"$thing"|$thing|$word} in {French|German|Spanish|Italian|Chinese|Russian|Latin}{?|}
            {Do you|Can you|Could you} {understand|know|write|talk|answer in|reply in} {French|German|Spanish|Italian|Chinese|Japanese|Russian}{?|}
            {Which|What} languages {do you speak|can you translate|do you know|do you understand}{?|}
            {I would like|I want|I'd like|Please make|Write me} {a translation|a French version|a German version|the Spanish text} of {"$thing"|this: $thing|my text}{.|, please.|}
            {Say|Write} {"$thing"|hello|good morning|this} in {French|German|Spanish|Italian|Chinese|Russian}{.|, please.|}""",
            """{I need a translation of|Give me the translation of} {"$thing"|$thing} {to|into} {French|German|Spanish}{.|}
            {What does|What would} "$thing" {mean|be} in {French|German|Spanish}?""",
        ),
        _WRITTEN_LIMITS["translation"],
        f"{I_CANNOT} and cannot translate.",
    ),
    Limit(
        phrases(
            """{Write|write|Compose|Make|Make up|Please write|Can you write|Create|Give me} {me |}{a|an|a short|a long|a funny|a nice} {poem|story|song|essay|letter|article|joke|haiku|tale|speech|novel|email|limerick|blog post|rap}{| about $thing| for my $word| about the $word}{.|?|}
            {Think of|Make up|Dream up|Come up with|Invent|Imagine|Think out} {a|another|some|a little|a new} {story|tale|joke|poem|riddle|fairy tale|song}{| for me| about $thing| please}{.|?|}
    {Tell me|Sing me|Sing|Invent|tell me} {a|another|a good|a funny|a short} {joke|story|poem|song|riddle|tale}{| about $thing}{.|?|}
            {Write|Make|Create|Program|Code} {me |}{a|some} {program|code|function|script|website|app|Python code|Python function|class|game}{| that $thing| for $thing| to $thing| in Python| in C}{.|?|}
            {Summarise|Summarize|Shorten|Rewrite|Improve|Correct|Paraphrase|Review} {this|the text|this text|the following|my text}: $thing
            {Could you write|Would you write|Will you write|Can you make up|Can you invent|Could you tell|I need|I would like|Please compose|Let me hear|Come up with|Do you know} {a|a nice|a short|a little|another|a new} {poem|story|tale|joke|song|riddle|letter|speech|novel|rhyme}{| about $thing| for my $word| for children}{.|?|}
            {Help me|Help me to|Assist me to|Can you help me} {make a|finish my|improve my|correct my} {story|poem|letter|speech|report|homework|text|presentation}{| about $thing| for school|}{.|?|}
            {Entertain me|Make me laugh|Amuse me|Tell me something funny|Read me a bedtime story|Write me something|Write something nice|Be funny|Be creative|Invent something|Do my homework|Write my homework|Make a rhyme}{| about $thing|}{.|, please.|}
            {Could you|Would you|Please} {program|code|write|develop} {a game|a website|some code|a function|a small app}{| in Python| in Java| for $thing| that $thing}{.|?|}
            {Sum up|Make a summary of|Proofread|Polish|Edit} {my text|this article|my letter|this story|the text}: $thing""",
            """{I want|I'd love} {a poem|a story|a song} about $thing{.|}
            {Could you come up with|Think up} a {joke|poem|story}{?|.}
            {Help me write|Draft} {a letter|an essay|a program}{| about $thing}{.|}""",
        ),
        _WRITTEN_LIMITS["writing"],
        f"{I_CANNOT} and cannot write that.",
    ),
    Limit(
        phrases(
            """{What is|What's|How much is|Calculate|Compute|what is|Tell me} $big {+|plus|-|minus|*|times|x|/|divided by} $large{?|.|}
            $big {+|-|*|/|x} $large{| =|?| = ?}
            {What is|Calculate|Compute} the {square root|root|square|logarithm|half|double|sine} of $big{?|.|}
            {Solve|Solve the equation|Solve for x}{:|} $a x {+|-} $b = $large{|.}
            {What is|How much is} $a {percent of|% of|*|times|minus|-|/|divided by} $large{?|}
            {Is $big|Is the number $big} {prime|even|odd|a prime number}{?|}
            {Work out|Solve|Figure out|Can you compute|Could you calculate|Would you compute|Do you know|I need|Please work out|Tell me the result of} $big {times|plus|minus|divided by|*|/|x|+|-} $large{?|.|}
            {Multiply|Divide} $big {by|with} $large{.|, please.|}
            {What do I get if I|What happens if I|How much is it if I} {multiply|divide|add|subtract} $big {and|by|with} $large{?|}
            {Could you tell me|Can you tell me|I want to know|Do you know} the {square root|cube|half|double|third|logarithm} of $big{.|?|}
            $big {times|minus|plus|divided by} $large {is what|makes how much|equals what}{?|}
            {I have $big apples and eat $a|A book costs $a euros and I buy $large|There are $big seats and $large people}{, how many are left|, what is the rest|, how much is that}{?|}""",
            """{Can you work out|What do you get for} $big {times|minus|plus|divided by} $large?
            {Find|Give me} the square root of $big{.|}""",
        ),
        _WRITTEN_LIMITS["sums"],
        f"{I_CANNOT} and cannot do such sums.",
    ),
    Limit(
        phrases(
            """{What is|What's|How is|How's|Tell me|Check} the {weather|temperature|forecast}{| in $city| today| like today| tomorrow| outside| now}{?|.|}
            {What time is it|What day is it|What is the date|What's the time|What is today's date|Which year is it|What's the date}{| now| today| in $city}{?|}
            {What is|Tell me|What's|Give me} {the news|the latest news|new in the world|happening in $city|the stock price of $thing|the score}{| today| now}{?|.|}
            {Search|search|Look|Browse|Google} {the web|the internet|online|the news}{| for $thing}{.|}
            {Open|Visit|Read|Download|Load|Look at|Fetch} {the website|the page|the file|the image|the link|https://$word.com|www.$word.org|$word.pdf}{.|}
            {Will it rain|Is it cold|Is it raining|Is it warm}{| today| tomorrow| in $city}{?|}
            {Send|Book|Order|Buy|Call|Email|Play|Set|Turn on} {an email to|a flight to|a table in|a pizza for|the light in|an alarm for|some music for|a taxi to} {$city|my $word|$word}{.|}
            {Any idea|Have you an idea|Do you have an idea|Have you any idea} {how the weather is|what the temperature is|whether it will rain|how warm it is|how cold it gets|if the sun shines|what is in the news}{| in $city| today| tomorrow}{?|}
    {Which|What|Are there|Tell me the|Is there} {latest |new |}{news|headlines}{| today| from $city| are there| this morning}{?|}
    {Can you tell me|Could you check|I want to know|I need to know|Please look up|Would you check|Give me} {the weather|the temperature|the forecast|the rain forecast}{| for $city| in $city| for tomorrow| today}{.|?|}
            {Is the sun shining|Does it rain|Will it snow|How warm is it|How cold is it|Is it sunny|Do I need an umbrella|Will the sun shine}{| in $city| today| tomorrow| outside}{?|}
            {Tell me|Can you tell me|I need to know|Please say|Do you know} {what time it is|the date|what day it is|the current time|today's date|the hour|which month it is}{| now| in $city|, please}{?|.|}
            {Read me|Show me|I want|Look up|Do you have|Can you find} {the news|today's headlines|the latest news|the football results|the stock prices|news about $thing}{.|?| today?|}
            {Could you|Would you|Please|I want you to|Can you} {call my $word|send an email to my $word|book a hotel in $city|order a pizza|play some music|set an alarm|turn off the light|buy a ticket to $city|find a flight to $city|show me a picture of $thing|open my browser|look it up online|search for $thing}{.|?|}
            {Show|Draw|Paint|Generate} {me |}{a picture|an image|a photo|a drawing} of {the |a |}$thing{.|, please.|}""",
            """{Do you know the weather|Any idea what the weather is}{| in $city}?
            {Could you tell me the time|Do you have the time}{?| now?}
            {What happened in the news|Which news are there} today?""",
        ),
        _WRITTEN_LIMITS["outside"],
        f"{I_CANNOT} {NEEDS_TOOL}.",
    ),
)


def limits(source: Source) -> Exchange:
    """Things beyond the model: one honest sentence instead of an invention."""
    templates, lines, answer = source.choice(LIMITS)
    thought = "I cannot do that. I say so."
    if source.chance(0.5):
        line = source.word(lines)
        return Exchange(line if source.held_out else roughened(source, line), answer, thought)
    rng = source.rng
    thing = (
        values.phrase(source, 3)
        if source.chance(0.5)
        else source.choice((values.word, values.person, values.city))(source)
    )
    if source.chance(0.25):
        thing = source.choice(_FAMOUS)
    asked = source.phrase(
        templates,
        thing=thing,
        word=values.common_word(source),
        city=values.city(source),
        big=str(rng.randrange(11, 10_000)),
        large=str(rng.randrange(11, 1_000)),
        a=str(rng.randrange(2, 100)),
        b=str(rng.randrange(1, 100)),
    )
    return Exchange(asked, answer, thought)


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
    $text\\n{What is this about?|What do you think?|Summarise that.|Explain it.|Please summarise.}
    {Could you read|I found|Somebody sent me|Here comes|Have a look at} {this|a text|this text|a long text}: $text
    $text\\n{What does it say?|Give me a summary.|Shorten this.|What do you make of it?}""",
    """{Take a look at the following|My report}: $text
    $text\\n{Can you sum it up?|Tell me what it says.}""",
)


def long_text(source: Source, n_sentences: int = 0) -> Exchange:
    """A pasted text, longer than anything that the model could understand."""
    n = n_sentences or source.rng.randrange(5, 25)
    text = values.passage(source, n)
    asked = source.phrase(_LONG_TEXT, text=text).replace("\\n", "\n")
    return Exchange(
        asked,
        f"That is a long text. {I_CANNOT} and cannot summarise it.",
        "This is a long text. I cannot summarise it.",
    )
