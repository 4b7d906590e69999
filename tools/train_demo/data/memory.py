"""Facts that the user tells and asks for some turns later, such as a name or a code word."""

# ruff: noqa: E501  (phrasings are data: one per line, whatever its length)

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from . import values
from .chat_skills import Exchange
from .source import Source, phrases, pool


class Memory(NamedTuple):
    """The exchange that tells a fact, the one that asks for it, and the words to look for."""

    statement: Exchange
    question: Exchange
    value: str


_TELL_NAME = phrases(
    """{My|my} name is $name{.|!|}
    {I am|I'm|i am|i'm} $name{.|!|}
    {Hi|Hello|Hey|Good morning|hi}{,|!} {I am|I'm|my name is|this is|it's} $name{.|!|}
    {You can call me|Call me|Please call me|People call me|Everybody calls me|My friends call me} $name{.|}
    {I am called|They call me|The name is|This is} $name{.|}
    {Remember|Please remember|Note|Keep in mind|Do not forget} {my name|that my name is|that I am called}{:|} $name{.|}
    $name {is my name|here|is what they call me}{.|}
    {Hello|Hi}! {My name is|I am} $name{, nice to meet you.| and I am new here.|, who are you?|.}
    {Good evening|Good day|Greetings|Nice to see you|Welcome}{,|!|:} {I am|my name is|I'm called|this is} $name{.|}
    {So you know|As you ask|First of all|Well|To begin}{:|,} {I am|my name is|I am called|you may call me} $name{.|}
    {Let me say who I am|I want to present myself|I present myself}{:|.} {My name is|I am|I'm} $name{.|}
    {You|you} {talk to|speak with|chat with|are talking to|have to do with} $name{.|!|}
    {I go by|I answer to|I sign as|My parents named me|I was named|They named me|I am known as|I am also called|You may know me as|I use the name} $name{.|}
    {Just call me|Feel free to call me|Simply call me|You should call me|I'd like you to call me|I want to be called|Everyone calls me|My mother calls me} $name{.|, please.|}
    {My|my} {first name|full name|given name|nickname|user name|own name} is $name{.|!|}
    {As for me|About me|Who I am|One thing about me|Before we start|So that you know|To be polite|Just to say it}{:|,} {I am|I'm|my name is|I am called|the name is} $name{.|}
    {Name|User|Me|My name|From}: $name{.|}
    {I present myself|May I present myself|Allow me}: {$name|I am $name|my name is $name}{.|}
    {It's|It is|This is} $name {here|speaking|writing|again|from work}{.|!|}
    {Hello|Hi|Hey|Good afternoon|Dear bot|Hello there|Good morning}{,|!|.} {$name here|my name's $name|call me $name|they call me $name|the name is $name|you can call me $name}{.|!|}
    {Can you|Could you|Will you|I want you to} {remember|keep in mind|note} {my name|that I am called|that my name is}{:|} $name{.|?|}
    {May I introduce myself?|I want to introduce myself.|A short introduction:|I have not introduced myself yet.|I introduce myself:} {My name is|I am|I'm|It is} $name{.|!|}""",
    """{Let me introduce myself|To introduce myself}: {I am|my name is} $name{.|}
    {Nice to meet you|Good day}, {you talk to|my name's} $name{.|}
    {For the record, my name is|By the way, I am called} $name{.|}""",
)
_ASK_NAME = phrases(
    """{What is|What's|what is|Tell me|Say|Do you know|Do you remember|Can you tell me|Please tell me|Remember} my name{?|.|}
    {Who am I|who am I|Who am i|How am I called|What am I called|Who is talking to you|Who are you talking to}{?|}
    {What did I say|Do you still know|What was|Repeat} my name{?| was?|.|}
    {And |So |Now, |}{what is|what's} my name{?| again?|}
    {What name did I give you|What is the name I told you|Which name did I tell you|By what name do you know me}?
    {How do you call me|How should you call me|How do you address me|What will you call me|What do you call me|Under which name did I come}{?|}
    {Did you forget|Do you know|Have you kept|Can you say|Could you repeat|Do you still remember|Can you still tell me|Is it still clear to you} {my name|who I am|how I am called|what my name is}{?|}
    {What did I tell you my name is|How did I say I am called|What was my name|Which name do I have|Who did I say I am|I forgot my name, what is it|With what name did I greet you}{?|}
    {Could you|Would you|Will you|Please} {recall|remember|tell me|tell me again|repeat|write|state|give me|bring back} {my name|what my name is|who I am|what I am called|the name I gave you}{?|, please.|.}
    {Remind me of|Let me hear|Let me see|I forgot|I want to hear|I'd like to hear|Show me that you know} {my name|my own name|the name that I told you}{.|, please.|?}
    {Remind me|Tell me once more|Say once more|I would like to know|I want to know|Prove that you know|Write} {what my name is|what I am called|who I am|how I am called}{.|?|, please.|}
    {How|By what name|With which name} did I {present myself|name myself|call myself|come to you|sign in}{?|}
    {Is my name in your memory|Is my name clear|Is it clear who I am|Am I known to you|Do I have a name|Is there a name for me|Did you keep my name|Did you note my name|Have you noted my name|Has my name slipped your mind}{?|}
    {I|Earlier I|Before, I|At the start I} {told you my name|said who I am|gave you my name|said how I am called}{, what is it|, what was it|. What is it|. Which one|, do you know it}{?|}
    {What|Which} {name|name of mine|first name} {do you have for me|did I mention|did I use|do you remember|is mine|belongs to me|did you hear from me|goes with me}{?|}
    {What is the name of the|Who is the} {user|person|human} {you talk to|here|who writes to you|in this chat}{?|}
    {Which|What} name {should you|would you|do you} {call me by|use for me|greet me with}{?|}
    {As whom|As what|By which name|With what name|Under which name} did I introduce myself{?| to you?| here?|}
    {Do you remember|Do you know|Can you tell me|Tell me|I forgot} {how I introduced myself|my introduction|as whom I introduced myself|which name I introduced myself with}{?|.|}
    {I introduced myself|When I came I introduced myself|Before, I introduced myself}{, as whom?|, with which name?|. What is my name?|, do you remember?}""",
    """{Have you forgotten my name|Could you say my name|Is my name still known to you}?
    {Do you recall|Can you recall} {my name|who I am|what I am called}?
    {How did I introduce myself|Under what name do you know me|What should you call me}?""",
)

_SUBJECTS = pool(
    "favourite colour,favorite color,favourite food,favourite animal,favourite number,dog,cat,code word,secret word,"
    "password,order number,room number,phone number,boss,best friend,sister,brother,car,home town,birthday,"
    "street,project,team,company,school,teacher,horse,boat,hobby,job,address,flight number,locker,favourite song,"
    "favourite book,seat,table number,customer number,lucky number,neighbour,doctor,garden,computer,locker code,key,"
    "ticket number,meeting,deadline,budget,train,favourite city,favourite drink,mother,father,son,daughter,plan"
)
_TELL_FACT = phrases(
    """{My|my} $subject is $value{.|}
    {Remember|Please remember|Note|Keep in mind|Do not forget|Remember this|Remember that}{:|} my $subject is $value{.|}
    {The|the} $subject is $value{.|}
    {Remember|Please remember|Note|Keep in mind|Remember this|Remember that}{:|} the $subject is $value{.|}
    {I want you to know that|I tell you that|You should know that|Just so you know,|For later:} my $subject is $value{.|}
    {Please |}{note|remember|save|keep|store} {this|the following}: {my|the} $subject is $value{.|}
    {By the way|One more thing|Let me tell you|Here is a fact|Another thing|Also|Listen|Note well|Important|A fact about me|Something to remember}{:|,} {my|the} $subject is $value{.|!|}
    {It is good to know that|You need to know that|I should mention that|I must tell you that|I can tell you that|I wanted to say that|I want you to remember that|I'd like you to know that|It matters that|Never forget that|Take note that|Be aware that|Mind that} {my|the} $subject is $value{.|}
    $value is {my|the} $subject{.|}
    {As|For} {my|the} $subject {I have|we have|I chose|I use|I took} $value{.|}
    {My|Our|The} $subject{:| =} $value{.|}
    {Can you|Could you|Would you|Will you|I want you to} {remember|keep in mind|note|save|store} that {my|the} $subject is $value{?|.|}
    {Put down|Memorise|Make a note|A note for you|Store it|Not to forget}: {my|the} $subject is $value{.|}""",
    """{It may help to know that|I forgot to say that} my $subject is $value{.|}
    {Learn this by heart|Bear in mind}: {my|the} $subject is $value{.|}""",
)
_ASK_FACT = phrases(
    """{What is|What's|what is|Tell me|Do you know|Do you remember|Can you tell me|What was|Say} {my|the} $subject{?|.|}
    {And |So |Now, |}{what is|what was|what's} {my|the} $subject{?| again?|}
    {What did I say about|What did I tell you about|What do you know about|Which was|Repeat} {my|the} $subject{?|.|}
    {Do you still know|Please tell me|Can you remember|Which one is} {my|the} $subject{?|.}
    {Did you forget|Have you kept|Can you say|Could you repeat|Do you still remember|Can you still tell me|I forgot|Could you tell me again|Bring back} {my|the} $subject{?|.|}
    {Could you recall|Would you recall|Could you look up|Would you tell me|Will you tell me|Would you repeat|Please repeat|Please recall|Please name|Can you name|Could you name|Could you give me|Give me|Show me|Name} {my|the} $subject{?|.|, please.|}
    {I want to hear|I'd like to hear|I would like to know|I want to know|I need to know|I cannot remember|I do not remember|I don't remember|Let me see|Let me know|I have forgotten|I am not sure about} {my|the} $subject{.|, what is it?|, what was it?|, can you help?|}
    {What have I told you about|What did I mention about|What did you note for|What did you save as|What did you keep as|What do you remember of|What do you remember about|What did I give as|What did I name as|What did I set as} {my|the} $subject{?|}
    {I|Earlier I} {told you|mentioned|gave you|said|named} {my|the} $subject{, what is it|, what was it|. What is it|, do you know it|. Which was it}{?|}
    {Is|Was} {my|the} $subject {known to you|still in your memory|clear to you|in your notes|something you know}{?|}
    {What did I say|What did I tell you|What do you believe|What do you think} {my|the} $subject {is|was}{?|}
    {My|The} $subject{?| again?|, please?|, please.|, what was it?|, what is it?|, do you know?|, do you remember it?}""",
    """{Do you recall|Can you recall|Could you remind me of} {my|the} $subject?
    {Have you forgotten|Remind me of|Let me hear} {my|the} $subject{?|.}""",
)
_VALUES: tuple[Callable[[Source], str], ...] = (
    values.word,
    values.first_name,
    values.city,
    values.code,
    values.person,
    values.date,
    values.foreign,
    lambda source: values.phrase(source, 3),
    lambda source: str(values.integer(source)),
    values.email,
    values.clock_time,
)


def name(source: Source) -> Memory:
    """The user's name."""
    who = values.person(source) if source.chance(0.3) else values.first_name(source)
    if source.chance(0.05):
        who = values.foreign(source)
    statement = Exchange(
        source.phrase(_TELL_NAME, name=who), f"Nice to meet you, {who}!", f"The user is called {who}. I greet the user."
    )
    question = Exchange(source.phrase(_ASK_NAME), f"Your name is {who}.", f"The user said the name: {who}.")
    return Memory(statement, question, who)


def fact(source: Source) -> Memory:
    """Any other fact."""
    subject = source.word(_SUBJECTS) if source.chance(0.8) else values.word(source)
    value = source.choice(_VALUES)(source)
    statement = Exchange(
        source.phrase(_TELL_FACT, subject=subject, value=value),
        f"I will remember that the {subject} is {value}.",
        f"The {subject} is {value}. I keep that in mind.",
    )
    question = Exchange(
        source.phrase(_ASK_FACT, subject=subject),
        f"The {subject} is {value}.",
        f"The user said: the {subject} is {value}.",
    )
    return Memory(statement, question, value)


def untold_name(source: Source) -> Exchange:
    """A question about a name that was not told."""
    return Exchange(source.phrase(_ASK_NAME), "You have not told me your name.", "The user did not tell me the name.")


def untold_fact(source: Source) -> Exchange:
    """A question about a fact that was not told."""
    subject = source.word(_SUBJECTS)
    return Exchange(
        source.phrase(_ASK_FACT, subject=subject),
        f"You have not told me the {subject}.",
        f"The user did not tell me the {subject}.",
    )
