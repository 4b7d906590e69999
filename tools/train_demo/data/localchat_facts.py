"""Questions about localchat and about the model itself, with true answers.

Each topic has patterns, where {a|b|} makes dozens of questions of one, and questions as people write them, of which
some are held out.
The answers must stay true of the README; a test compares ports, flags and paths.
"""

# ruff: noqa: E501  (phrasings are data: one per line, whatever its length)

from __future__ import annotations

from typing import NamedTuple

from . import chat_skills
from .chat_skills import Exchange
from .source import Pool, Source, phrases, written


class Topic(NamedTuple):
    """One question: its subject in a few words, patterns of it, written ones, its answer."""

    subject: str
    templates: tuple[str, ...]
    written: Pool
    answer: str


# The same frames around what is wished for or asked for in each topic: they teach which words matter.
_WISH_FRAMES = (
    "{I want to|I need to|I would like to|I'd like to|I have to|I try to|I plan to|We want to|We need to} {$wish}{, how|. How|, what do I do|, what now|. What must I do|, how does that work|, can you help me|. How do I do that}{?|}",
    "{Is it possible to|Is there a way to|Would it be possible to|Is it hard to|Do you know how to|Are there ways to|Am I able to} {$wish}{?|}",
    "{{Which command|What command|Which step|What|Which thing} {lets me|helps me to|allows me to|makes it possible to}|What {is|would be} the {best|right|simplest|usual|shortest} {way|method|step} to} {$wish}{?|}",
    "{{Show me|Explain|Tell me|Describe|Teach me|Please explain|Could you show me|Can you tell me|Would you explain|Please tell me} {how to|how I can|how one can|the way to}|{In what way|In which way|By what means|How exactly} {can I|could I|do I|should I|would one}} {$wish}{?|.|, please.|}",
    "{{I do not know how to|I have no idea how to|I cannot find out how to|I forgot how to|It is not clear to me how to} {$wish}{.|, can you help me?|}|{If I want to|When I want to|In order to|Say I want to|To} {$wish}, {what do I type|what must I do|what do I do|where do I begin|how do I do it}{?|}}",
    "{By|With|Through|Using} {which|what} {flag|option|setting|switch|command|step} {can I|could I|do I|may I|would I} {$wish}{?|}",
)
_THING_FRAMES = (
    "{Could you name|Can you name|Would you tell me|Please name|Do you happen to know|Let me know|Let me see|Please write|I need to know|I would like to hear|I'd like to see|Could I have|May I see|Can I get} {$thing}{?|.|, please.|}",
    "{Where can I find|Where do I see|Where can I look up|What can you tell me about|What do you know about|What should I know about|I cannot remember|I am looking for|I must know|Nobody told me|I could not find} {$thing}{?|.|}",
)


_WRITTEN = written("questions")


def _topic(subject: str, answer: str, templates: str, wishes: str = "", things: str = "") -> Topic:
    """A topic; `wishes` are alternatives of what one wants to do, `things` of what one asks for."""
    framed = [frame.replace("$wish", wishes) for frame in _WISH_FRAMES if wishes]
    framed += [frame.replace("$thing", things) for frame in _THING_FRAMES if things]
    return Topic(subject, phrases("\n".join([*framed, templates])).trained, _WRITTEN[subject], answer)


TOPICS: tuple[Topic, ...] = (
    _topic(
        "who I am",
        "I am localchat's built-in demo model, a tiny program that runs on your own computer.",
        """Who am I speaking with here?
        Please give me your name.
        What do people call you?
        Can you introduce yourself to me?
        Which language model is this one?
        {What is|What's|what is|Tell me|May I know|Say} your name{?|.|}
        {Who|who|What|what} are you{?| exactly?| really?|}
        {Do you have a name|How are you called|What are you called|What should I call you|How should I call you|your name|name?}
        {Introduce yourself|Tell me about yourself|Tell me who you are|Describe yourself|Say who you are|Present yourself}{| please|.|!}
        {Which|What} {model|AI|bot|language model|LLM|assistant|chatbot} {are you|is this|am I talking to|do I talk to|answers me}{?|}
        {What kind of|What sort of} {model|bot|program|AI|assistant} are you{?|}
        {With whom|Who|To whom} am I {talking|speaking|chatting}{ to| with|}{?|}
        {Are you|Is this} {localchat|the demo model|the built-in model|a demo|a bot|a program|a computer|an AI|a robot|a machine|a language model}{?|}
        {Could you|Can you|Would you|Will you|Please} {tell me|say|reveal|let me know} {who you are|what you are|your name|what you are called|how you are called}{?|, please.|.|}
        {By what name|By which name|Under which name|With what name} {do you go|are you known|may I call you|can I call you|should I address you}{?|}
        {May I|Can I|Could I} {ask who you are|ask your name|hear your name|learn who you are|know what you are|ask for your name}{?|}
        {Who|What} {is answering me|is writing to me|is on the other side|is behind this chat|is speaking|writes these answers|talks to me here|answers my questions}{?|}
        {Which|What} {language model|LLM|neural network|AI model|network} {is it that answers|is behind this|runs here|do I chat with|writes these answers|is built in here}{?|}
        {I would like to|I want to|I'd like to|Let me} {know who you are|know your name|hear who you are|get to know you|learn your name}{.|, please.|}
        {Have you got|Have you|Did they give you} a name{?|}
        {Who|What} {do I have here|have I got here|do I speak to|is this here|might you be|exactly are you}{?|}
        {your name|name|identity|your identity|who you are}""",
    ),
    _topic(
        "other models",
        "No, I am localchat's own demo model, trained from nothing for this project.",
        """You are ChatGPT, right?
        Is it Claude that answers me?
        Am I chatting with a real human?
        Did Google make you?
        {Are|are|Aren't} you {ChatGPT|chatgpt|GPT|GPT-4|Claude|Gemini|Llama|Qwen|Mistral|Siri|Alexa|a human|human|a person|a real person|OpenAI|DeepSeek|Copilot|Grok|a man|a woman}{?|}
        {Is this|Am I talking to|Do I talk to|Are you based on|Were you made by|Do you come from|Are you made by} {ChatGPT|GPT|Claude|Gemini|Llama|Qwen|Mistral|OpenAI|Google|Meta|Microsoft|Anthropic|a human|a person}{?|}
        {I think|I guess|I bet|I believe|Surely|So} you are {ChatGPT|GPT-4|Claude|Gemini|a human|a person|Llama|Siri|from OpenAI|from Google}{.|?|, is that true?|, correct?|, am I right?|}
        Did {OpenAI|Google|Meta|Microsoft|Anthropic|Apple} {train you|build you|create you|write you|develop you}{?|}
        {Is it|Is that|Is there} {ChatGPT|GPT|Gemini|Llama|Qwen|a human|a person|OpenAI} {who writes this|that writes to me|behind this|behind you|on the other side|that I talk with}{?|}
        {Am I|Are we} {talking to|writing with|speaking with|connected to} {ChatGPT|GPT|Gemini|Claude|a real person|a man|a human being|OpenAI}{?| here?|}
        {You're|You must be|You sound like|You look like|You are} {Claude|GPT|Gemini|Llama|Alexa|Siri|a human|a real human}{, aren't you?|, right?|, yes?|.|, no?}
        {Do you belong to|Are you a version of|Are you a copy of|Are you related to|Are you the same as|Are you just} {ChatGPT|GPT|Claude|Gemini|OpenAI|Llama}{?|}
        {Is your maker|Is your company|Is the company behind you} {OpenAI|Google|Meta|Microsoft|Anthropic}{?|}
        {ChatGPT|GPT-4|Claude|Gemini|OpenAI|being a human|Alexa}""",
    ),
    _topic(
        "who made me",
        "I was made by the localchat project and trained on text that a program wrote.",
        """Which people developed you?
        What data was used to train you?
        By whom were you built?
        How did your training work?
        {Who|who} {made|created|built|trained|wrote|developed|programmed|designed|invented} you{?|}
        {How|how} were you {made|trained|created|built|programmed}{?|}
        {Where|where} do you come from{?|}
        {Who is|Who's} your {maker|creator|author|developer|father|boss|owner}{?|}
        {What|On what|What data|Which data} were you trained on{?|}
        {How|When|Where} did you {learn|learn to talk|learn to speak|learn that}{?|}
        {Tell me about|What is} your {training|training data|origin|creator}{?|.}
        {By whom|By which people|By what company|By which team} were you {made|trained|written|developed|programmed|created}{?|}
        {Which|What} {company|person|team|group|project|firm} {made|built|trained|created|wrote|is behind} you{?|}
        {Where did you get your knowledge|From where do you know that|Where did they train you|How did you come into being|How did you begin|How was the model trained|Where is the model from}{?|}
        {What|Which} {text|texts|books|material|examples} {did you learn from|were used for your training|were you trained with|taught you}{?|}
        {Tell me|Explain|I want to know|I'd like to hear|Could you tell me} {who made you|who built you|who your maker is|how you were trained|where you come from|what you learned from}{.|?|}
        Did {somebody|a person|a company|a team|a student} {make|train|build|write|program} you{?|}
        {Whose work are you|Whose product are you|Who is the person that made you|Who is the team behind you|Who stands behind you|To whom do you owe your life}{?|}
        {How|In what way} {was your training done|did they train you|did someone make you|did you get trained|were you taught}{?|}
        {Which|What} {people|persons|humans|programmers|engineers|developers} {made|built|wrote|trained|created|programmed|stand behind|thought of} you{?|}
        {Were|Was it} {people|programmers|engineers|a team|a person} {who built you|that made you|who trained you|who wrote you}{?|}
        {your maker|your author|your creator|your training|your origin|training data}""",
    ),
    _topic(
        "how large I am",
        "I have about three and a half million parameters and my file is smaller than 4 MB.",
        """What size does the built-in model have?
        How much space does your file need?
        Tell me how many parameters you have.
        Is your model file large?
        {How|how} {big|large|small|heavy|tiny} are you{?|}
        {How many} {parameters|weights|bytes|megabytes|MB} {do you have|are in you|does the model have|do you need|does the demo model have}{?|}
        {What is|What's|Tell me} {your size|the size of the model|the size of the demo model|your file size|the model size|your parameter count}{?|.}
        {How big|How large|How small} is {the|your|this} {demo |built-in |}{model|model file|file|gguf}{?|}
        {Are you|Is the model} {big|small|a big model|a large model|tiny|large}{?|}
        {Would you call|Do you call} {yourself|the built-in model|this model} {small|large|big|tiny}{?|}
        {Tell me|I want to know|Could you tell me|Can you say|Please say} {the size of your file|how large you are|how big the model is|how many weights you have|how many megabytes you have|the number of your parameters|your size in megabytes}{?|.|}
        {Do you take|Does the model take|Does your file take|Does the demo model need} {much space|a lot of space|much disk|many megabytes|more than 10 MB|a gigabyte}{?|}
        How much {disk space|room|storage|space} {do you take|does the model take|does the demo model need|do you use up|is taken by the model file}{?|}
        {Compared with others|In numbers|In megabytes|In parameters}, how {big|large|small} {are you|is the model|is the built-in model}{?|}
        {Of what size|What size} {are you|is the model|is the demo model|is your file|is the file of the model}{?|}
        {What|Which} {number of parameters|number of weights|file size|size in bytes} {do you have|have you got|does the demo model have|has the built-in model}{?|}
        {Is your file|Is the demo model|Is the built-in model} {a big one|heavy|very small|bigger than a photo|small enough for my disk}{?|}
        {model size|your size|parameter count|how many parameters|number of parameters}""",
    ),
    _topic(
        "what I can do",
        "I can chat a little, answer questions about localchat, call tools, repeat, count and make lists.",
        """Which things are you able to do for me?
        Give me an overview of your abilities.
        In what ways can you help me?
        What are the things you can do?
        {What|what} can you do{?| for me?|}
        {What|what} are {you able to do|your skills|your abilities|you good at|you good for|your functions|your capabilities|you capable of}{?|}
        {How|how} can you {help|help me|assist me|be useful}{?|}
        {What can I|What should I|What may I} {ask you|ask|do with you|do here|say to you|ask you to do|try}{?|}
        {Can you|Could you|Will you} {help me|help|do something|do anything|do something for me|assist me}{?|}
        {Tell me|Show me|Explain|List} {what you can do|your skills|your abilities|your features|what you do}{.|}
        {I need help|help|Help|Help me|help me|Help!|HELP|What do you do?|What is your purpose?|What are you for?|features|skills}
        {What sort of|What kind of|Which|What} {things|tasks|jobs|questions|work} {can you do|can I give you|do you do|can you take over|can you handle|are you made for|suit you}{?|}
        {With what|How|Where} {can you help me|could you help|could you be of help|are you of use|could you assist}{?|}
        {Name|Show|Describe|List|Let me see|Let me hear} {some things that you can do|a few of your skills|your talents|what you are good at|all you can do}{.|, please.|?|}
        {I want to know|I would like to know|Could you tell me|Would you show me|I wonder} {what you can do|what you are able to do|what you are good at|how you can help|what I can use you for}{.|?|}
        {What will you|What would you|What could you} do for {me|us|a user|my work}{?|}
        {Do you have|Have you got} {any skills|special skills|some abilities|any talents}{?|}
        {What can I use you for|For what can I use you|What are you useful for|What do you offer|What do you know to do|What are you built for}{?|}
        {Give me|I need|Show me} {a list of your skills|a list of what you can do|some ideas what to ask you|an example of your skills}{.|, please.|}
        {your skills|your abilities|features|skills|your functions|your purpose}""",
    ),
    _topic(
        "what I cannot do",
        "I know nothing about the world, and I cannot translate, write stories or do hard sums.",
        """Which things do you do badly?
        Where are your limits?
        Tell me about your weaknesses.
        What is impossible for you?
        {What|what} {can you not|can't you|cannot you} do{?|}
        {What|what} are your {limits|limitations|weaknesses|weak points|weak spots|faults|flaws|problems}{?|}
        {What are you|What is it that you are} {not able to do|bad at|not good at|unable to do}{?|}
        {Is there something|Is there anything|What is there that} you {cannot do|can't do|can not do}{?|}
        {Tell me|Show me|Explain|List} {your limits|what you cannot do|what you can't do|your limitations|your weak spots}{.|}
        {Can you do everything|Do you know everything|Are you smart|Are you intelligent|Are you clever|How smart are you|Do you make mistakes|Can I trust you|Are you always right|Are your answers correct|Are you reliable}{?|}
        {What|Which} {things|tasks|questions|jobs} {can you not do|do you not know|are beyond you|do you fail at|are you bad at|should I not ask you|can't you do}{?|}
        {Where|When} do you {fail|make errors|go wrong|make mistakes|get stuck}{?|}
        {What|Is there something that|Is there anything that} {is too difficult for you|is too much for you|goes wrong with you|you will not manage|you do not know|you are unable to do}{?|}
        {I want to know|Could you tell me|Would you tell me|I'd like to hear|Please say} {what you can't do|where you fail|what your limits are|what you do not know|what is too difficult for you|what your weak points are}{.|?|}
        {Name|Describe|Let me hear} {some of your limits|a weakness of yours|a few weak points|the things that you cannot do|your weak sides}{.|?|}
        {Do you|Can you} {ever make errors|ever fail|know all things|answer everything|know all answers|solve every task|do all that I ask}{?|}
        {What is out of reach|What is not possible|What is too hard|What remains difficult} for {you|a model like you|such a small model|a demo model}{?|}
        {Do you have|Have you got|Are there} {limits|weaknesses|things that you cannot do|any weak points|limitations}{?|}
        {What|Is anything|Is something|Which things are} {out of reach|too hard|not possible|beyond your power|more than you can do} for you{?|}
        {What|Which things} {would you never manage|do you never manage|can you never do|will never work with you|do not work with you}{?|}
        {limits|limitations|your limits}""",
    ),
    _topic(
        "what localchat is",
        "localchat is a small chat client in plain Python and a server around llama.cpp.",
        """Can you tell me what localchat is?
        What kind of software is localchat?
        In one sentence, what is localchat?
        What do people use localchat for?
        {What is|What's|what is|whats} {localchat|local chat|Localchat|this localchat|this project|this program|this software|localchat exactly|this}{?|}
        {Explain|Describe|Tell me about|Tell me what is} {localchat|this project|this program|this software}{.|}
        {What does} {localchat|this project|this program} do{?|}
        {What is} {localchat|this project|this program} {for|good for|about|made for}{?|}
        {I do not know|I have never heard of|I am new to} {localchat|this project}{.|}
        {What is the purpose of|What is the idea of|What is special about|Why should I use|Who needs} {localchat|this project}{?|}
        {Could you|Would you|Can you|Please} {explain|describe} {localchat|this project|what localchat is|what this project is|what localchat does}{?|.|, please.|}
        {I want to know|I would like to know|I wonder|I'd like to hear|I have no idea} {what localchat is|what this project is|what localchat does|what this program is|what localchat is for}{.|}
        {What sort of|What kind of} {project|program|tool|thing} is {localchat|this}{?|}
        {Is localchat|Is this project|Is this program} {a chat program|a server|a client|a library|an app|a web page|a chat client}{?|}
        {Why was|For what was|For whom was} {localchat|this project} {made|written|built}{?|}
        {In short|In a few words|In two words|Briefly|For a beginner}, {what is localchat|what does localchat do|what is this project|explain localchat}{?|.|}
        {Who uses|What do I do with|What can I do with|What do I get from|What is inside} {localchat|this project|this software}{?|}
        {Somebody|My friend|A colleague|My boss} {told me about localchat|uses localchat|spoke of localchat|sent me localchat}{, what is it|, what is that|, what does it do|. What is this}{?|}
        {about localchat|localchat|localchat?|info about localchat}""",
    ),
    _topic(
        "starting with make",
        "Type `make run`: it builds everything once and starts the server.",
        """I have just cloned localchat, what now?
        Which command builds localchat and starts it?
        How does the installation of localchat work?
        What do I have to type to install it?
        {How|how} {do I|can I|to|do we|does one} {build|install|set up|compile|get|build and start|install and start|get started with|begin with} {localchat|the project|this project|this|everything|it|the program|local chat}{?|}
        {What does|What is} {make run|`make run`|"make run"}{ do| for| doing|}{?|}
        {How|how} do I {get started|start from scratch|begin|install this|set this up|get it running}{?|}
        {What is|Show me|Tell me} {the quickest way to start|the first step|the first command|how to install|how to build|the quick start|how to get started}{?|.|}
        {What should I do|What do I type|What do I do} {first|after cloning|after the download|to begin|in a fresh clone}{?|}
        {I|We} {just |have just |}{downloaded|checked out|fetched|got|copied|unpacked} {localchat|the repository|the source|the project|the code}{, what is the first step|, how do I go on|, what do I do next|. What next|. How do I begin|, what comes now}{?|}
        {How|In what way} {is|does one get} {localchat|the project|the program|everything} {built|installed|set up|compiled}{?|}
        How {does|would} {the build|the setup|the compilation|the first start|the build process} {of localchat |of the project |of everything |}{work|go|happen|begin}{?|}
        {Which|What} {command|make target|target} {builds the project|installs localchat|sets everything up|compiles everything|builds and starts everything|builds the project and runs the server|does the installation|builds it and runs it}{?|}
        {What|Which command} {do I type|must I type|do I enter|do I run} {to build localchat|to set everything up|to install localchat|for the installation|for the build|to build and start all}{?|}
        {Is there|Do you have} {a quick way to install it|an installer|a single command for everything|an install script|a simple start for beginners|a command that builds everything}{?|}
        {localchat|The project|It} {is not built yet|is not installed yet|must be built first|has to be compiled}{, how do I do that|, what do I type|, what now|. What do I do}{?|}
        {I|We} {just|only just|have now|finally} {cloned|got|fetched|pulled|opened} {the repository|the source|the sources|this project|the files|the git repository}{, what now|, what next|, and then|, what do I do|. And now|, what comes first}{?|}
        {After|Now after} {git clone|the clone|cloning it|getting the source}{, what now|, what comes next|, what do I type|, how do I go on}{?|}
        {installation|install|quickstart|build|make run|setup|getting started}""",
        wishes="build localchat|install localchat|set up the project|compile everything|get the project going|install this from scratch|build and launch everything|set localchat up on a new computer|begin with localchat|build it from source",
    ),
    _topic(
        "starting the server",
        "Start the server with `python -m localchat.server`, or with `make run` the first time.",
        """Give me the command for starting the server.
        What must I type so that the server starts?
        The server is not running, how do I start it?
        In which way is the server launched?
        {How|how} {do I|can I|to|do you|does one|would I} {start|run|launch|bring up|boot|fire up} {the|your|a|my} {server|localchat server|chat server|API server}{?| from the terminal?|}
        {What|Which} {command|is the command that|line} {starts|runs|launches} {the|your} {server|localchat server}{?|}
        {Tell me|Show me|Explain|I want to know} how {to|I} {start|run|launch} {the|a} {server|localchat server}{.|}
        {I want to|I need to|Help me to|Help me|I would like to} {start|run|launch} {the|a} {server|localchat server}{.|}
        {Start the server how|server start|start server|run server|launch server|server command|how start server}{?|}
        {What do I type|What do I need|What do I enter} to {start|run|launch} the server{?|}
        {How|In what way|By which command} {is|does one get} the server {started|running|brought up|switched on}{?|}
        {What|Which command|Which line} {brings the server up|gets the server going|makes the server run|turns the server on|must I type for the server|do I enter for the server}{?|}
        {The|My} server {is down|is off|does not run|has not started|is stopped|is not up|is not on yet}{, how do I start it again|, how do I bring it up|, what do I type|. How do I start it|, which command starts it}{?|}
        {Could you|Can you|Please|Would you} {give me|show me|tell me|write} {the start command of the server|the command that launches the server|the line that starts the server|the server's start command}{?|.|}
        {I have built everything|It is installed|I installed localchat|The build is done}{, how does the server start now|, how do I run the server|, what starts the server|. How do I launch the server now}{?|}
        {What|Which command} {must I run|should I type|do I run|do I have to enter} {so that the server runs|to get the server up|so that a server is there|to have a server}{?|}
        {starting the server|the start of the server|running the server|a server start|launching the server}""",
        wishes="start the server|launch the server|run the localchat server|get the server running|bring the server up|start the API server|have the server running|switch the server on|start localchat as a server",
    ),
    _topic(
        "another model",
        "Give the file to the server: `python -m localchat.server MODEL.gguf`. Any GGUF model works.",
        """I would like to talk to a bigger model, how?
        How is a different GGUF file loaded?
        What models does the server accept?
        Is it possible to serve my own model?
        {How|how} {do I|can I|to|do you} {use|load|run|serve|choose|select|open|start|try|add} {another|a different|my own|a bigger|a larger|a better|an other|a new|a GGUF|a gguf|some other|a real} {model|model file|gguf|GGUF file|GGUF model|LLM}{?|}
        {Can|Could|May} {I|it|localchat|the server} {use|load|run|serve} {other models|another model|my own model|a bigger model|Llama|Qwen|a GGUF file|any model|other GGUF files|a larger model|Mistral}{?|}
        {Which|What} {models|model files|formats|file formats|model formats|file types} {work|can I use|are supported|does localchat support|does it support|can it load|can be loaded|does the server run|are possible}{?|}
        {Does|Will} {localchat|the server|it} {support|work with|run|load} {other models|GGUF|gguf files|Llama models|Qwen|my model|every model|any model}{?|}
        {What|Which} {kinds of models|GGUF files|model files|sort of model|other models} {does the server take|can be used|will localchat accept|does the server understand|may I load|are accepted|can the server open}{?|}
        {How|By which command} is {another model|a bigger model|my model file|a GGUF file|some other model} {loaded|used|opened|served|chosen|given to the server}{?|}
        {I have|I downloaded|I got|I own} {a GGUF file|a bigger model|a model file|my own model|a model from the internet|Llama as a GGUF file}{, how do I use it|, how do I load it|. Can localchat run it|, does that work|, what do I do with it|, can the server serve it}{?|}
        {Is|Are} {another model|other models|bigger models|a larger model|models of my own|any GGUF file} {possible|allowed|supported|usable|an option}{?| here?|}
        {Am I limited to|Do I have to use|Must I use|Must I take|Is there only|Am I bound to} {the built-in model|this model|the demo model|the small model|this tiny model}{?|}
        {The demo model|This model|The built-in model} is too {small|weak|simple|tiny} {for me|for my work|}{, can I take another|, how do I get a better one|, how do I load a larger one}{?|}
        {Will|Can|Could} {the server|localchat|it} {take|open|load|accept|serve} {a model of mine|a file from Hugging Face|a GGUF model|a bigger model than this|every GGUF file|a Mistral model}{?|}
        {change the model|use another model|switch model|supported models|load model|other models|model file|gguf}{?|}""",
        wishes="use another model|load a different model|serve a GGUF file of mine|run a larger model|chat with a bigger model|switch to some other model|take a model from Hugging Face|open a GGUF file|replace the built-in model|give the server a new model|run Llama with it|run Qwen with localchat",
    ),
    _topic(
        "the port",
        "The server listens on 127.0.0.1, port 8080, unless you give `--port`.",
        """Tell me the port number that the server has.
        Which TCP port is the standard one?
        At which address will I find the server?
        Does localchat have a default port?
        {Which|What|which|what} {port|address|host|IP|IP address|default port} {does|will} {the server|localchat|the localchat server|it|your server} {use|listen on|run on|have|take|listen to}{?| by default?|}
        {On which|On what|At which|At what} {port|address|host} {does|can|is} {the server|localchat|it} {run|listen|running|listening|be reached|available}{?|}
        {What is|What's|Tell me|Show me} {the|the default|your|the server's} {port|address|host|port number|server address|listening port}{?|.| of the server?| of localchat?}
        {Where|where} {does the server listen|is the server|is the server running|can I find the server|does the server run|do I reach the server|is localchat running}{?|}
        {port|default port|server port|port number|server address|host and port|listen address}{?|}
        {Is the port|Is it port|Does it use port|Is the server on port} {8080|8000|80|5000|3000}{?|}
        {Under which|At which|Through which|By which} {address|port|host|TCP port|IP address} {do I reach|can I reach|do I find} {the server|localchat|the running server}{?|}
        {Which|What} {number|TCP port|port number|network port} {is the server's port|is the default|has the server|does the server open|is the port}{?| unless I change it?|}
        {Is there|Has localchat|Has the server|Does the server have} {a standard port|a fixed port|a usual port|a default address|a default host}{?|}
        {The server runs|The server is up|I started the server|The server has started}{, on which port|, where do I find it|, at what address|, which port is it|. Which port does it have}{?|}
        {My firewall|My browser|A program|My router} needs {the port|the port number|the address and port|the server's port}{, which is it|, what is it|}{?|.}
        Is {the server|localchat} {on port 8080|only on 127.0.0.1|on localhost}{?| by default?|}
        {Which port do I|What port do I|Which address must I} {open in the browser|look at|connect to|use to reach the server|call to reach the server}{?|}
        {port|default port|server port|port number|server address|TCP port}""",
        things="the port of the server|the server's port|the port that localchat uses|the standard port|the address of the server|the host and the port|the TCP port|the server's address|the default port of localchat",
    ),
    _topic(
        "changing the port",
        "Use `--port` and `--host`, for example `python -m localchat.server --port 9000`.",
        """8080 is not free, how do I take a different port?
        Is it possible to use another port number?
        What sets the port of the server?
        How can the server listen on another address?
        {How|how} {do I|can I|to|do you} {change|set|choose|select|pick|configure|use|switch} {the|another|a different|a new|my own} {port|host|address|port number}{?| of the server?| for the server?}
        {Can|May} {I|the server|localchat|it} {change the port|use another port|run on another port|use port 9000|listen on a different port|set the port|run on port 5000}{?|}
        {The port|Port 8080} is {taken|in use|busy|blocked|used|already in use|occupied}{.| what now?|, what can I do?|}
        {How|how} {do I|can I} {open the server to|reach the server from|listen on|serve} {my network|another computer|all addresses|the local network|other machines|the LAN}{?|}
        {Which|What} {option|flag|setting|switch|argument} {changes the port|moves the server to another port|is for the port|chooses the port|sets the host|determines the port}{?|}
        {Another program|Something else|A different server|My web server} {uses|occupies|runs on|has|blocks} {port 8080|8080|that port|the default port}{, what now|, what can I do|, how do I take another|. How do I avoid that}{?|}
        {I need|I want|We need|The server should have|It should run on} {port 9000|another port|a different port|port 3000|port 80|some other port number|port 5001}{, how|, how do I do that|, how do I set that|. What do I type}{?|}
        {How|By which flag} is the {port|host|address|port number} {changed|set|chosen|configured|selected}{?|}
        {Can|Could} the {port|host|address of the server|port number} be {changed|set|chosen|another one|different|configured}{?|}
        {Is the port fixed|Must it be 8080|Does it have to be port 8080|Am I stuck with port 8080|Can I avoid port 8080}{?|}
        {My phone|My laptop|My other computer|A second computer} {should|has to|wants to} reach {the server|my server|localchat}{, how|. How|, what do I set|}{?|}
        {What|Which thing|Which flag|What flag} {changes|chooses|decides|determines|selects|fixes} {the port|the port number|the host|the address|on which port the server listens}{?| of the server?}
        {With what|With which option|By which option|Through which flag} {do I set the port|is the port chosen|do I choose the address|do I change the port}{?|}
        {change port|set port|another port|other port|different host|change host}{?|}""",
        wishes="change the port|use a different port|run the server on another port|take some other port|move the server to port 9000|listen on port 5000|set the port by hand|make the server listen on my network|open the server to other computers|change the address of the server|choose the port number",
    ),
    _topic(
        "the options of the server",
        "The options are --host, --port, --ctx, --parallel, --gpu-layers, --threads, --api-key and --alias.",
        """Can you name the flags of the server?
        What can be configured on the command line?
        Give me an overview of the server's options.
        Which command line arguments does the server know?
        {What|Which|what|which} {options|flags|arguments|parameters|settings|switches|command line options} {does the server have|are there|can I use|does the server take|exist|does localchat.server have|can I give the server|are available|does it accept}{?|}
        {List|Show me|Tell me|Name|Give me|What are} {the|all|all the} {options|flags|arguments|settings|command line options|server options}{.|?| of the server| please}
        {How|how} {do I|can I} {configure|set up|tune|adjust|customise} the server{?|}
        {Is there|Are there|Does the server have} {an option|options|flags|settings|a list of options|any flags|a configuration}{?|}
        {What|Which things} {can I|may I|could I|can one} {configure|set|adjust|change|tune} {for the server|at the server|when I start the server|about the server|in the server}{?|}
        What {can be|may be} {set|adjusted|changed|given} {at the start of the server|with flags|by options|through flags of the server}{?|}
        How many {options|flags|arguments|settings} {does the server have|does the server know|are there}{?|}
        {Does|Will} the server {take|accept|know|understand} {options|flags|arguments|settings|command line arguments|many options}{?|}
        {With which|By which|Through which} {options|flags|settings|arguments} {can I start the server|is the server started|is the server configured|may I run the server}{?|}
        {I want to|I need to|I would like to} {configure the server|see all flags|tune the server|know the options|see the settings of the server}{, how?|, what is there?|. Which options exist?|.|}
        {options|flags|server options|server flags|settings|configuration|arguments|command line}{?|}""",
        things="the options of the server|all the flags|the server's settings|the command line arguments|a list of the server's flags|every option of the server|the switches of the server|an overview of all flags",
    ),
    _topic(
        "the context",
        "Use `--ctx` with a number of tokens, for example `--ctx 2048`.",
        """I need a larger context, which flag is it?
        By which option is the context length set?
        How do I give the model more context?
        What limits the length of a prompt?
        {How|how} {do I|can I|to} {change|set|choose|increase|raise|reduce|limit|make bigger|enlarge} {the|the size of the} {context|context length|context size|context window|number of tokens}{?|}
        {Which|What} {option|flag|setting|argument} {sets|changes|is for|controls} {the context|the context size|the context length|context}{?|}
        {What is|What does} {--ctx|the option --ctx|ctx|the ctx option}{| do| for| mean}{?|}
        {How long|How big|How large} {is|can be} {the context|the prompt|the context window|my prompt|a prompt|the conversation}{?|}
        {My|The} {prompt|text|conversation|context} is too {long|big|short|small}{.|}
        {By which|With what|With which} {flag|option|setting|argument} {do I set the context|is the context changed|do I get a larger context|do I raise the context size|can I make the context bigger}{?|}
        How many tokens {fit|fit into the context|can a prompt have|may a prompt have|does the context hold|can the model read}{?|}
        {How|Where} is the {context size|context length|length of the context|size of the context window} {set|changed|chosen|limited|raised}{?|}
        {My|Our} {conversations|prompts|texts|messages|documents} {are|get|become} too {long|large}{, what can I do|, how do I raise the limit|, which option helps|. What now|}{?|}
        {I want|I need|We need|The model needs} {more context|a longer context|a bigger context window|room for longer prompts|4096 tokens of context|more tokens}{, how|, what do I set|. How do I get it|, which option is that}{?|}
        {Can|Could} {the context|the context window|the prompt|my prompt} be {longer|larger|bigger|made longer|extended|made larger}{?|}
        {What happens when|What do I do when|What if} {the prompt is too long|the context is full|my text is too long|the conversation gets too long|I run out of context}{?|}
        {What|Which setting|Which option|Which number} {bounds|restricts|decides|determines|fixes} {how long a prompt can be|the prompt's length|how many tokens fit|the longest prompt|the length of the text|the length of a conversation}{?|}
        {Is there|What is} {a limit|the limit|a maximum|the maximum} {of|for|to} {the length of my text|the prompt's length|the number of tokens|how long a text may be|the size of a prompt}{?|}
        {context|context size|context length|ctx|context window|--ctx}{?|}""",
        wishes="make the context larger|have more context|send longer prompts|set the context length|raise the context size|use a bigger context window|have longer conversations|limit the tokens of the context|change how many tokens fit",
    ),
    _topic(
        "many users",
        "Yes, many requests run at the same time; `--parallel` sets how many.",
        """Is it possible that several people use the server together?
        Does it work with more than one client at a time?
        Can I send two requests simultaneously?
        How do I set the number of parallel requests?
        {Can|can|Could} {many|several|two|more|multiple|ten|a lot of} {users|people|clients|programs|requests} {use|talk to|ask|connect to|share} {the server|it|localchat|you}{| at once| at the same time| together| in parallel}{?|}
        {How many} {users|clients|requests|people|connections|streams} {can use the server|are possible|can it serve|at the same time|in parallel|at once|does it handle}{?|}
        {Does|Can} {the server|localchat|it} {handle|serve|support|run|answer} {many|several|parallel|multiple|concurrent} {requests|users|clients|streams}{?|}
        {What is|What does|How do I use} {--parallel|the option --parallel|parallel}{| do| for}{?|}
        {Does|Will|Would} {it|the server|localchat|that} {work|cope|go well|run} {with two users|with several clients|for more than one person|for many people|with many requests at once|with more than one user|when two programs ask|for a whole team}{| at the same time| in parallel}{?|}
        {Is|Are} {more than one user|several clients|parallel requests|two clients at once|many users|simultaneous requests|concurrent users} {possible|allowed|supported|served together}{?|}
        {May|Can|Could} {my colleagues|two programs|our whole team|my friends|several computers|more than one person} {use|ask|query|talk to|work with} {the server|localchat|it} {at once|simultaneously|side by side|in parallel|together}{?|}
        {What happens if two people ask at once|What happens when many requests come together|How does the server treat many requests at once|How is it with several users|What if a second client connects}{?|}
        {Which|What} {option|flag|setting} {sets the number of users|is for parallel requests|sets how many requests run at once|is for more clients|limits the parallel requests}{?|}
        {I have|We have|There are} {several users|ten people here|many clients|more than one program|a whole team|two clients|many requests}{, is that possible|, does that work|, can the server do that|. Does the server handle them all}{?|}
        {Is it okay|Is it all right|Is it a problem|Does it work|Is it allowed} {that|if|when} {two people|a few people|many people|some colleagues|several programs} {share the server|ask at the same time|use it at once|work with the server|send requests together}{?|}
        {parallel|parallel requests|concurrent requests|batching|many users|--parallel|concurrency}{?|}""",
        wishes="serve several users at once|send many requests at the same time|let two people use the server|answer more than one request at once|run requests in parallel|share the server with my team|connect many clients|set how many requests run together",
    ),
    _topic(
        "the API key",
        "Start the server with `--api-key KEY`; clients then have to send that key.",
        """Can I lock my server with a secret key?
        What must I do so that only people with a key get in?
        Which flag sets the API key?
        Is an API key necessary?
        {How|how} {do I|can I|to} {set|use|require|protect the server with|add|give|configure|need} {an|the|a} {API key|api key|password|key|token}{?|}
        {How|how} {do I|can I|to} {protect|secure|lock|restrict} {the server|my server|localchat|access to the server}{?|}
        {Do I need|Is there|Does the server need|Must I have|Does it need|Do I have to give} {an|a} {API key|api key|key|password|token}{?|}
        {What is|What does|Which option is} {--api-key|the option --api-key|for the API key|the api key for}{| do| for}{?|}
        {Which|What} {option|flag|setting|argument} {protects the server|is for the key|requires a key|is for authentication|asks for a key|turns on authentication}{?|}
        {Can|Could|May} {the server|localchat|it} {require a key|ask for a password|check an API key|be protected|be locked|be secured|use authentication}{?|}
        {How|Where} is {the API key|a key|the password|the token} {set|given|chosen|configured|defined}{?|}
        {Nobody else|Only my team|Only people I know|No stranger|Only some users} should {use|get into|talk to|have access to} {the server|my server|localchat}{, how|, how do I do that|. How|}{?|}
        Is {the server|my server|the API} {protected|secured|open to everybody|safe from strangers|locked}{?|}
        {Must|Do|Should} {clients|users|my programs} {send a key|have a key|need a password|log in|give a password|send a token}{?|}
        {What|Which} {key|password|token|API key} {do I send|does the server want|must a client send|do I give|is expected}{?|}
        {API key|api key|authentication|auth|security|--api-key|key|password protection}{?|}""",
        wishes="protect the server with a key|set an API key|ask clients for a password|keep strangers out|restrict who uses the server|make the server safe|require a token|secure my server|let only some people in|add authentication",
    ),
    _topic(
        "the graphics card",
        "All layers go to the GPU when the build of llama.cpp has one; `--gpu-layers` changes that.",
        """I own an NVIDIA graphics card, is it used?
        Will my GPU make it faster?
        Which option moves layers to the GPU?
        Does the model run on CUDA?
        {Can|Does|Will|can|does} {localchat|the server|it|you} {use|support|run on|work with|need} {a|the|my} {GPU|gpu|graphics card|NVIDIA card|CUDA|video card|Metal}{?|}
        {How|how} {do I|can I|to} {use|enable|turn on|switch on|get} {the|a|my} {GPU|gpu|graphics card|CUDA|GPU support|GPU acceleration}{?|}
        {How many} {layers|GPU layers|model layers} {go to|run on|are on|are put on} the {GPU|graphics card}{?|}
        {What is|What does} {--gpu-layers|the option --gpu-layers|gpu-layers}{| do| for}{?|}
        {Is there|Do you have} {GPU support|CUDA support|GPU acceleration|support for GPUs}{?|}
        Is {my GPU|the graphics card|my NVIDIA card|CUDA|an AMD card|the video card} {used|supported|of use|any good}{?| by the server?| here?|}
        {Which|What} {option|flag|setting|argument} {is for the GPU|sets the GPU layers|puts layers on the graphics card|controls the GPU|turns on the GPU|decides what the GPU does}{?|}
        {I have|I bought|My computer has|There is} {a GPU|a new graphics card|an NVIDIA card|a fast graphics card|CUDA installed|a Mac with Metal}{, does localchat use it|, will it be used|, how do I use it|. Does that help|, is it of any use}{?|}
        {Does|Would|Will} {a GPU|a graphics card|CUDA|an NVIDIA card} {help|speed it up|make the model faster|make a difference|work}{?|}
        {Does it|Does the model|Can the model|Will the server} run {on the GPU|on a graphics card|on NVIDIA hardware|on a video card|on my graphics card}{?|}
        {How much of the model|Which part of the model} {goes|is put|is loaded} {onto the GPU|on the graphics card|to the GPU}{?|}
        {GPU|gpu|cuda|CUDA|GPU layers|graphics card|metal|--gpu-layers|gpu support}{?|}""",
        wishes="use my graphics card|run the model on the GPU|make it faster with a GPU|put layers on the GPU|move the model to the graphics card|turn on CUDA|use the video card|let the GPU do the work|choose how many layers go to the GPU",
    ),
    _topic(
        "threads and speed",
        "Use `--threads` to set the number of CPU threads.",
        """The server should use only two cores, how?
        By which flag do I set the thread count?
        Is it possible to limit the CPU threads?
        What controls how many CPU cores are busy?
        {How|how} {do I|can I|to} {set|change|choose|limit|use|reduce} {the|the number of|more|fewer|the count of} {threads|CPU threads|cores|CPU cores|processor cores}{?|}
        {How many} {threads|cores|CPU threads|CPUs} {does the server use|does it use|are used|will it use|can I use}{?|}
        {What is|What does} {--threads|the option --threads|threads}{| do| for}{?|}
        {Which|What} {option|flag} {sets|is for|changes|controls} {the threads|threads|the number of threads|CPU usage|the cores}{?|}
        {It|Localchat|The program|My server} {should|must|may} {use|take|occupy|have} {only|at most|no more than|all|just} {four cores|one core|three threads|one CPU|half the CPU|eight threads|some cores}{, how|, how do I do that|, which option|. How}{?|}
        How much {CPU|of the CPU|processor power} {does the server use|is used|does it take|does it need}{?|}
        {With which|By which|Through what} {option|flag|argument|setting} {do I limit the cores|do I choose the threads|are the threads set|is the CPU limited|do I give it more cores}{?|}
        {The CPU|My computer|My processor|The machine} is {too busy|at 100 percent|overloaded|completely busy|very hot}{, what can I do|, how do I limit that|. How do I use fewer threads|, can I lower that}{?|}
        {Can|Could} {the server|it|localchat|the model} use {more cores|fewer threads|all my cores|only one core|less CPU|more threads|several cores}{?|}
        {How|Where} {is the number of threads|are the threads|are the CPU cores|is the thread number} {set|chosen|limited|changed}{?|}
        {By|With|Through} {which|what} {flag|option|setting} {is the thread number changed|is the number of threads given|do I lower the threads|do I give the number of threads|do I choose how many cores work}{?|}
        {What|Which thing} {sets|decides|limits|determines} {how many threads run|how many cores work|the number of CPU threads|how busy the CPU is}{?|}
        {threads|CPU threads|number of threads|cpu cores|--threads|cpu}{?|}""",
        wishes="use fewer CPU threads|limit the server to four cores|set how many threads run|use all cores|give the server more cores|keep some cores free|use less CPU|change the number of threads|run on one core only|reduce the CPU load",
    ),
    _topic(
        "the name of the model",
        "Use `--alias NAME`; clients then see the model under that name.",
        """I want clients to see another model name, how?
        By which flag is the model renamed?
        Is it possible to set an alias for the model?
        What is the alias option good for?
        {How|how} {do I|can I|to} {rename|name|give a name to|set the name of|change the name of|give another name to|set an alias for} {the|my|a} {model|served model|model in the API}{?|}
        {What is|What does} {--alias|the option --alias|alias|the alias}{| do| for}{?|}
        {Which|What} {option|flag} {sets|changes|is for} {the model name|the alias|the name of the model|the model's name}{?|}
        {Can I|May I} {rename the model|give the model another name|set an alias|choose the model name|use another model name}{?|}
        {Clients|My programs|The API|Users} should {see|get|show|use} {a different model name|another name for the model|a shorter model name|my own name for the model|a nicer model name}{, how|, how do I do that|. How|, which option is it}{?|}
        {How|By which option|With which flag} is {the model name|the name of the model|an alias|the model's name} {set|changed|chosen|given}{?|}
        {Can|Could|May} the {model|served model} {have|get|be given|carry} {another name|a different name|an alias|a new name|a name of my choice}{?|}
        {I need|I want|I would like} {an alias|another name for the model|a different model name|a new model name}{, how|, which option is it|. How do I set it|, what do I type}{?|}
        {The model name|The name of the model} {is ugly|is too long|is wrong|does not fit|should be different}{, can I change it|, how do I change it|. What now|}{?|}
        {What is|What's} {an alias|--alias|the alias flag|the model alias} {for|used for|needed for}{?|}
        {By|With|Through} {which|what} {option|flag|setting} {do I rename the model|is the model given another name|does the model get a new name|do I choose the model's name|can the model have an alias}{?|}
        {What|Which flag|Which option} {renames|gives another name to|gives an alias to} {the model|a model|the served model}{?|}
        {alias|model name|model alias|--alias|rename model}{?|}""",
        wishes="rename the model|give the model another name|show clients a different model name|set an alias|change the model name that clients see|pick the model's name in the API|hide the file name of the model|let the model appear under a new name",
    ),
    _topic(
        "the base URL",
        "The base URL is http://127.0.0.1:8080/v1.",
        """Please give me the URL for my OpenAI client.
        To which URL do I send requests?
        What goes into the base_url field?
        Can you tell me the API's base URL?
        {What is|What's|Tell me|Give me|Show me|Which is} {the|your|the right|the correct} {base URL|base url|URL|url|API URL|address for OpenAI clients|link|endpoint URL|OpenAI base URL}{?|.|}
        {Which|What} {base URL|base url|URL|url} {do I use|do I need|should I use|must I set|do I give|does the client need|is right|is used}{?|}
        {Where|where} do I {point|connect} {my client|the OpenAI client|the openai package|my program|my SDK}{| to}{?|}
        {What do I|What must I|What should I} {write|set|put|enter} {as|for} {base_url|the base URL|OPENAI_BASE_URL|base url}{?|}
        {Which|What} {URL|base URL|API URL} {must my client have|do clients use|do I put into my client|does the openai package need|do I configure|leads to the API}{?|}
        {To which|To what|At which|Under which} {base URL|API URL|web address|URL of the server} {do I send my requests|must my client send requests|do clients connect|do requests go|is the API reachable|do I find the API}{?|}
        {My client|My program|The openai package|My app|LangChain} {asks for|wants|needs|requires} {a base URL|a URL|an API URL|the base_url}{, which one|, what do I give|, what is it|, what do I enter|. Which is right}{?|}
        {What|Which value} {belongs into|do I write into|do I fill into|must stand in} {base_url|the base URL field|the URL setting|the field for the URL}{?|}
        {With|Using} {which|what} {URL|base URL} {do I reach the API|does a client work|do I configure my client|can I call the API}{?|}
        {How does the base URL go|What does the base URL look like|How do I write the base URL|How is the base URL|What is my base URL|What URL has the API}{?|}
        {base URL|base url|base_url|API URL|url|URL}{?|}""",
        things="the base URL|the URL of the API|the URL for clients|the base_url value|the right URL for my client|the URL for the OpenAI package|the URL that clients use",
    ),
    _topic(
        "OpenAI clients",
        "Yes, every OpenAI client works: set its base URL to http://127.0.0.1:8080/v1.",
        """Will my program for OpenAI run with this server?
        Does the server understand the API of OpenAI?
        I have the openai package, does that work?
        Which other clients can talk to it?
        {Can|Could|May} I {use|connect|try} {the OpenAI package|the openai package|an OpenAI client|OpenAI clients|the OpenAI SDK|the openai library|LangChain|other clients|any OpenAI SDK|the openai Python library}{| with it| with localchat| with this server}{?|}
        {Is|Are} {the server|localchat|it|the API|you} {OpenAI compatible|compatible with OpenAI|compatible with the OpenAI API|like the OpenAI API|OpenAI-compatible}{?|}
        {Does|Will} {it|the server|localchat|this} {work|speak|run|go} {with OpenAI clients|the OpenAI protocol|with the openai package|with other clients|with the OpenAI SDK|the OpenAI API}{?|}
        {How|how} {do I|can I|to} {use|connect|set up} {the openai package|an OpenAI client|the OpenAI SDK|OpenAI clients|the openai library}{?|}
        Is {my OpenAI program|the openai library|existing OpenAI code|the OpenAI SDK|LangChain} {supported|usable|compatible|able to talk to the server|fine with this server}{?|}
        {Will|Would|Does} {my code for OpenAI|the openai package|LangChain|an app for OpenAI|software for the OpenAI API|a program made for ChatGPT's API} {work|run|get along|function} {here|with localchat|with the server|with this}{?|}
        {I use|I have|I know|I wrote|We use} {the OpenAI SDK|a program for OpenAI|LangChain|an OpenAI client|the openai library|code for the OpenAI API}{, can I keep it|, is that possible here|. Will it work with localchat|, does it run with this server|, can it talk to the server}{?|}
        {Does|Can} {the server|localchat|it} {speak like OpenAI|follow the OpenAI API|understand OpenAI requests|act like the OpenAI server|replace the OpenAI API|take requests of OpenAI clients}{?|}
        {Which|What} {clients|client programs|client libraries|SDKs} {work|can be used|are compatible|can connect|may I use} {with it|with the server|with localchat|}{?|}
        Is {the API|the protocol|it|the interface} {the same as OpenAI's|the one of OpenAI|like that of OpenAI|made for OpenAI clients}{?|}
        {openai|OpenAI|OpenAI client|OpenAI compatible|openai package|OpenAI SDK|compatibility}{?|}""",
        wishes="use the OpenAI package|connect an OpenAI client|run my OpenAI code with this server|use LangChain with localchat|keep my OpenAI program|call the server with the OpenAI SDK|use some other client program",
    ),
    _topic(
        "the terminal client",
        'Type `python -m localchat "your text"`; the answer is streamed to the terminal.',
        """I like to work in a shell, how do I ask you there?
        Give me the command for chatting in a terminal.
        Can I send a question from the command line?
        How is the command line client used?
        {How|how} {do I|can I|to} {chat|talk|ask a question|send a message|use it|use localchat|ask something|write to you} {in|from|on|at} {the terminal|the command line|the shell|a terminal|my terminal|a shell|bash}{?|}
        {Is there|Do you have|Does localchat have} {a terminal client|a command line client|a CLI|a command line tool|a terminal program|a command for the terminal}{?|}
        {How|how} {do I|can I|to} {use|start|run} the {terminal client|command line client|client in the terminal|CLI}{?|}
        {What is|What does} {python -m localchat|`python -m localchat`|the terminal client}{| do| for}{?|}
        {Which|What} {command|is the command} {asks the model|sends a message|starts the client|for chatting in the terminal|chats}{?|}
        {Which|What} {command|line|shell command} {asks you something|sends my text|is for chatting|lets me chat in the shell|prints an answer in the terminal|is the client}{?|}
        {How|In what way} is {the terminal client|the command line client|the CLI} {started|called|run|typed|invoked}{?|}
        {Can|May|Could} {I|we|one} {chat|talk to you|ask you|use localchat|get answers} {in the terminal|in a shell|from the command line|at the prompt|in bash|without a browser}{?|}
        {I am|I work|I sit} {in a terminal|at the command line|in the shell|at a console}{, how do I chat|, how do I ask you|, how can I talk to you|. How do I send a message}{?|}
        {Does it|Does localchat|Does the client} {run in the terminal|work on the command line|work in a shell|print to the terminal|work from the console}{?|}
        {What|Which command} do I {type|enter|write} {to ask you something in the terminal|to chat|to chat in a shell|to send you a message|to talk with the model|for a question in the terminal}{?|}
        {terminal|terminal client|command line client|cli|CLI|shell|python -m localchat}{?|}""",
        wishes="chat in the terminal|ask the model from the shell|talk to you on the command line|send one question from a terminal|use localchat in a shell|get an answer in the terminal|write to you without a browser",
    ),
    _topic(
        "another server",
        "Use `--base-url URL` or set OPENAI_BASE_URL.",
        """My server is on a different machine, how does the client find it?
        Is the client able to speak with Ollama?
        Which environment variable does the client read?
        How do I tell the client to use a remote server?
        {How|how} {do I|can I|to} {use|point|connect|send} {the terminal client|the client|localchat|the terminal program|python -m localchat} {with|to} {another server|a different server|another URL|a remote server|my own server|OpenAI|Ollama|vLLM|llama-server|LM Studio}{?|}
        {What is|What does} {OPENAI_BASE_URL|--base-url|the option --base-url|the variable OPENAI_BASE_URL}{| do| for}{?|}
        {Can|Does|Will} {the client|the terminal client|localchat's client} {work with|talk to|use|connect to} {another server|other servers|OpenAI|Ollama|vLLM|llama-server|a remote server|LM Studio}{?|}
        {Which|What} {variable|environment variable|option|flag} {sets the server|sets the URL|tells the client where the server is|is for another server|changes the server of the client}{?|}
        {Which|What} {option|variable|setting|flag} {points the client to a server|makes the client use another server|gives the client its URL|selects the server for the client|does the client look at for the URL}{?|}
        Is {the client|localchat's client|the terminal client} {usable with|able to reach|good for|made for} {Ollama|a remote server|vLLM|other servers|LM Studio|OpenAI|a server elsewhere}{?|}
        {The server|My server|Our server|My Ollama} {is on another machine|runs on a different computer|is somewhere else|runs on my other computer|has another URL|is remote}{, how do I tell the client|, how does the client reach it|. How do I use it with the client|, what do I set in the client}{?|}
        {How does the client know|How do I tell the client|Where do I tell the client|How does localchat's client learn} {which server to use|where the server is|the URL of the server|where to send requests}{?|}
        {Can|May|Could} I {use|run|take} {the client|the terminal client} {without the localchat server|for other servers|with an Ollama server|with a server on the internet|with OpenAI itself|for another server}{?|}
        {I use|I have|We run} {Ollama|vLLM|llama-server|LM Studio|another server|a server in the cloud}{, can the client talk to it|, does the client work with that|. How do I connect the client|, how does the client get there}{?|}
        {another server|other server|remote server|--base-url|OPENAI_BASE_URL|environment variable|different server}{?|}""",
        wishes="connect the client to another server|point the client at a remote server|use the client with Ollama|send the client's requests elsewhere|talk to vLLM with the client|use the client with a different server|let the client ask llama-server|set the URL of the client|use the terminal client with OpenAI",
    ),
    _topic(
        "the endpoints",
        "There are POST /v1/chat/completions, GET /v1/models and GET /health.",
        """Could you name the HTTP routes of the server?
        Which paths can I request?
        Give me an overview of the API.
        What can I call over HTTP?
        {What|Which|what|which} {endpoints|routes|paths|API endpoints|API routes|HTTP endpoints|URLs} {are there|does the server have|does localchat have|exist|can I use|does it offer|are available|does the API have}{?|}
        {List|Show me|Tell me|Name|Give me} {the|all|all the} {endpoints|routes|paths|API endpoints|HTTP routes}{.|?|}
        {What is|What's} {the endpoint|the path|the route} {for chat|for chatting|for the models|for chat completions|of the chat API}{?|}
        {Where|To which path|To which endpoint} do I {send|post} {chat requests|a request|messages|my request|a POST}{?|}
        {What does|What can} the {API|HTTP API|REST API|server's API} {offer|do|look like}{?|}
        {Which|What} {routes|HTTP paths|endpoints|requests} {can I call|may I call|does the server know|does the server answer|are served|are offered by the API|can a client call}{?|}
        What {can I request|can I ask for|can a client call|is offered|is there} {over HTTP|by HTTP|through the API|with curl}{?|}
        {How|In what way} {does the API look|is the API built|is the HTTP API organised|do I call the API|is the API called}{?|}
        Does the {server|API} {have|offer|know} {many endpoints|a REST API|an HTTP API|several routes|a chat endpoint|a chat route}{?|}
        How many {endpoints|routes|paths|HTTP routes} {are there|does the server have|does the API have|can I call}{?|}
        {I want to|I would like to|I need to|I plan to} {call the API with curl|use the HTTP API|see the routes|know all endpoints|call the API directly|write my own HTTP client}{, which paths are there|, what can I call|, which routes exist|. What is there}{?|}
        {Where do I|To which route do I|To which path must I|Which path do I use to} {send a chat request|post my messages|send a POST}{?|}
        {endpoints|routes|API|paths|api endpoints|REST API|http}{?|}""",
        things="the routes of the API|all endpoints|the HTTP paths|the paths of the server|every route|a list of the endpoints|the API's endpoints|the endpoints of the server|the HTTP interface|the server's routes",
    ),
    _topic(
        "health",
        "Ask GET /health; it tells whether the server is ready.",
        """Where can I see that the server is alive?
        By which request do I test whether it is ready?
        Which endpoint is for health checks?
        How would a script find out that the server is up?
        {How|how} {do I|can I|to} {check|see|know|test|find out|ask} {whether|if|that} {the server|it|localchat} {is ready|is running|is alive|works|is up|is healthy|is on}{?|}
        {Is there|Does the server have} {a health check|a health endpoint|a status page|a way to check the server|a readiness check}{?|}
        {What is|What does} {/health|GET /health|the health endpoint|the path /health}{| do| for}{?|}
        {Is the server|Is it} {ready|alive|healthy|up|running|on}{?|}
        {Which|What} {endpoint|path|request|route} {tells whether the server is ready|is for the health check|shows that the server is alive|checks the server|tells the status|is for monitoring}{?|}
        {How|Where} {can|could|would} {I|my program|a script|a monitor|somebody} {see|notice|learn|tell} {that the server is up|whether the server is ready|if it is alive|when the server has started|whether the server still runs}{?|}
        Is {there a way|it possible} to {see|check|ask|test} {whether the server works|if the server is ready|that the server lives|the health of the server|the state of the server}{?|}
        {Has the server started|Is my server working|Does the server run|Does the server still live|Is localchat up|Is it ready yet|Did the server start}{, how do I see that?|, how can I tell?|. How do I check?|?|}
        {I am not sure|I do not know|I wonder|I must know} {whether|if} the server {is ready|is up|runs|is alive|works|has started}{.|, how do I check?|, how can I test that?|}
        How does {the server report its health|the server tell that it is ready|a health check work|a program check the server}{?|}
        {health|health check|status|server status|/health|readiness|liveness}{?|}""",
        wishes="check that the server is up|test whether the server is ready|see if the server is alive|wait until the server is ready|find out whether the server runs|monitor the server|check the health of the server|make sure that the server works|know when the server is ready",
    ),
    _topic(
        "listing models",
        "Ask GET /v1/models; it lists the models that the server offers.",
        """I want to see what models are loaded, how?
        Where does the server tell its model names?
        Which request returns the list of models?
        Is there a way to list all models?
        {How|how} {do I|can I|to} {list|see|get|find|show|ask for} {the|all|all the|the available} {models|models of the server|served models|model names|model list}{?|}
        {What is|What does} {/v1/models|GET /v1/models|the path /v1/models|the models endpoint}{| do| for| return}{?|}
        {Which|What} {endpoint|path|route|request} {lists the models|shows the models|is for models|gives the model names|returns the models}{?|}
        {Which models|What models} does the server {offer|have loaded|have now|serve now}{?|}
        {Which|What} {models|model names} {are loaded|are served|are there now|does the API list|are on the server now|does the server list}{?|}
        {By which|With which|With what|Through which} {request|endpoint|path|call} {do I get the models|are the models listed|do I list the models|does the server tell its models|do I see the loaded models}{?|}
        {Can|Could|Does|Will} {the server|the API} {list its models|show the models|tell me its models|give the model names|tell which model is loaded}{?|}
        {Where are the models listed|Where is the model list|Where do I find the model names|How does a client see the models|How can a program get the model names|Where do I see which model is loaded}{?|}
        {I need|I want|My client needs|My program wants} {the list of models|the model names|the names of all models|the ids of the models|the model list|the name of the loaded model}{, where is it|, how do I get it|, which path is that|. Where do I ask|}{?|}
        {list models|model list|/v1/models|available models|show models}{?|}""",
        wishes="get the names of the models|list the served models|ask for the model list|find out which models are there|see the model names|look up the id of the model|query the models of the server|know which model is loaded",
    ),
    _topic(
        "streaming",
        'Send "stream": true; the answer then comes token by token as server-sent events.',
        """I want to see the words as they come, how?
        Is it possible to receive the answer token by token?
        In what form does the server send a stream?
        Which field in the request turns on streaming?
        {How|how} {do I|can I|to|does} {stream|get a stream|streaming work|use streaming|stream the answer|turn on streaming|enable streaming|get the tokens one by one|receive tokens}{?|}
        {Does|Can|Will} {the server|localchat|it} {stream|support streaming|stream answers|stream tokens|send tokens one by one|use server-sent events|use SSE}{?|}
        {What is|What does|Tell me about} {streaming|server-sent events|SSE|"stream": true|the stream option|stream}{| do| mean| here}{?|}
        {Is there|Do you have|Is} {streaming|a streaming mode|streaming possible|streaming supported|support for SSE}{?|}
        {Does|Will|Can} {the text|the answer|the reply|the output|a response} {come|arrive|appear} {word by word|piece by piece|bit by bit|live|step by step|in parts|while it is written}{?|}
        {I do not want to|I hate to|Must I|Do I have to|Why must I} wait {for the whole answer|until the answer is complete|for the end of the answer|until all is written}{.|?|, what can I do?|}
        {Which|What} {field|parameter|setting|key} {of the request |in the request |in the JSON |}{is for streaming|starts streaming|makes the answer stream|sends the tokens live|turns the stream on}{?|}
        {In which|In what|With which} {format|form|way|protocol} {is the stream sent|do the tokens come|are the tokens sent|does the stream come|does streaming happen}{?|}
        {The answer|The reply|The text|The output} should {appear word by word|come live|come piece by piece|show each word at once|come as it is written|arrive in small pieces|be streamed}{, how|, how do I do that|. How|, what do I send}{?|}
        How {are tokens streamed|is an answer streamed|does the stream work|do I read the stream|does live output work|do the words arrive one by one}{?|}
        {stream|streaming|SSE|server-sent events|stream tokens|stream true|sse}{?|}""",
        wishes="stream the answer|see the answer live|get the answer word by word|read the text while it is written|receive the tokens as they are made|show the reply piece by piece|watch the answer grow|get each word at once|have a live answer|turn on streaming|use server-sent events",
    ),
    _topic(
        "the Python client",
        'Write `from localchat import Client, chat`; then `chat("Hello")` asks the server.',
        """I write a Python program, how do I call the model?
        What is the import line of the client?
        Which names do I import from localchat?
        Can I chat from my own Python code?
        {How|how} {do I|can I|to} {use|call|import|write} {the client|localchat|the Python client|the library|the package|it} {in|from|with} {Python|a Python program|my Python code|a script|my program|code|Python code}{?|}
        {How|how} {do I|can I|to} {import|call} {localchat|the client|the Client class|chat}{?|}
        {Show me|Give me|Tell me|What is} {an import line|the import|the Python import|an example in Python|a Python example|how to import localchat|a Python sample}{.|?|}
        {Is there|Do you have} {a Python client|a Python library|a Python API|a client for Python|a Python package}{?|}
        {What do I|What must I} {import|write in Python}{?|}
        {I write|I have|I am writing|We write} {a Python script|Python code|some Python|a program in Python|a notebook}{, how do I ask the server|, how do I use the client there|. How do I call localchat|, what do I import|, how do I chat from it}{?|}
        {Which|What} {class|names|function|import line|statement} {do I import from the package|do I use in Python|is for chatting from Python|asks the server from Python|must I import in Python}{?|}
        {Show me|Give me|I need|I would like|Can I see|Could you show me} {a small Python program that chats|a short script with localchat|Python code for a chat|an example script for the client|some Python lines for the client}{.|?|, please.|}
        {Can|Could|May} {Python|a Python script|my Python program|my notebook|a script} {ask the server|use localchat|talk to the model|chat with you|call the client}{?|}
        How is {the client|the library|localchat} {used|imported|called} {in Python|from Python|in a script|from a program}{?|}
        {From|With|In} Python, how do I {ask the server|chat|use localchat|get an answer|call the model|send a message}{?|}
        {python client|Python|import|Python example|library|client|python code|from localchat import}{?|}""",
        wishes="use localchat from Python|call the model in a Python program|import the client|ask the server from a script|write a Python script that chats|talk to the model from my Python code|use the Python library",
    ),
    _topic(
        "copying the client",
        "Copy four files: sse.py, events.py, wire.py and client.py. They need only the standard library.",
        """I do not want to install anything, may I copy the client?
        Which source files are needed for the client?
        Tell me the files that I take over into my project.
        What must be copied to have the client in my script?
        {Can|May|Could} I {copy|vendor|bundle|include|take} {the client|localchat's client|only the client|the client files|the client code}{| into my project| into my program| into my script}{?|}
        {Which|What} {files|parts|modules} {do I copy|belong to the client|are the client|make up the client|do I need for the client|must I copy|does the client have}{?|}
        {How|how} {do I|can I|to} {copy|vendor|bundle|embed} the client{?| into my project?|}
        {How many} files {does the client have|is the client|do I copy|has the client}{?|}
        {Which|What} {source files|Python files|files} {make the client|must I take|belong together|do I put into my project|should I copy for the client|do I need to copy}{?|}
        {Is it allowed to|Is it okay to|Is it fine to|Am I allowed to|May one} copy {the client|the client's files|the files of the client|the client code}{| into another project| into my own program| into my repository}{?|}
        {I want|I need|I'd like} {only the client|the client as plain files|just the client, not the server|the client without a package|the client files in my project}{, how|, which files are that|, what do I copy|. What do I take}{?|}
        {How many|What number of} files {make up the client|belong to the client|must be copied|do I have to copy|are the client}{?|}
        {Can|Could} the client be {copied|bundled|vendored|taken over|included in my project|put into my program|used without installing}{?|}
        {What|Which parts} {do I have to take over|of the source do I copy|do I copy to get the client|should be copied for the client}{?|}
        {vendor|vendoring|copy the client|client files|which files|four files}{?|}""",
        wishes="copy the client into my project|take the client without installing|bundle the client with my program|use the client without pip|put the client's files into my own code|vendor the client|ship the client with my app",
    ),
    _topic(
        "what must be installed",
        "The client needs only Python's standard library; the server needs llama-cpp-python.",
        """Is there something that I have to install before?
        On which packages does localchat depend?
        Tell me the requirements.
        Does the server depend on another library?
        {What|Which} {dependencies|packages|libraries|requirements|things} {does|do} {localchat|the client|the server|it|I} {need|have|require|have to install}{?|}
        {What|what} {do I need to install|must I install|is needed|is required|do I need|has to be installed|are the requirements|are the dependencies}{?| for the server?| for the client?| to run it?}
        {Does|Do} {the client|the server|localchat|it} {need|have|require} {dependencies|packages|other packages|llama-cpp-python|numpy|anything else|a library|pip packages}{?|}
        {Is|Must} {llama-cpp-python|llama.cpp|numpy|pip|a compiler} {needed|be installed|required|necessary}{?|}
        {On what|On which libraries|On what packages} does {the server|the client|this|the project} {depend|rely|build}{?|}
        {Do I have to|Must I|Should I|Do I need to} {install|get|add} {anything|something|other packages|llama-cpp-python|a library|numpy|some packages|further software}{| first| before| for it| for the server| for the client}{?|}
        {Which|What} {pip packages|Python packages|other software|third-party packages|libraries} {are needed|must be there|do I install first|are necessary|does the server want}{?|}
        {Does it|Does the project|Does localchat} {come with dependencies|depend on other software|use other packages|rely on numpy|run without other packages|run on plain Python}{?|}
        {Can I run it|Will it run|Does the client work|Does the server work} without {extra packages|installing packages|dependencies|numpy|llama-cpp-python|other libraries}{?|}
        {I want|I need|I would like} to know {what it depends on|which packages are needed|what I have to install first|what the server requires|which dependencies there are}{.|}
        {Does|Do|Will} {the server|the client|the program|localchat} {rely on|build on|ask for|make use of} {some library|other libraries|any package|another package|more software|anything else}{?|}
        {Are|Is} there {any dependencies|a dependency|anything to install|something that it depends on|some package that it needs}{?|}
        {dependencies|requirements|packages|llama-cpp-python|prerequisites|deps}{?|}""",
        things="the dependencies|the requirements of localchat|the packages that it needs|the prerequisites|a list of the needed packages|the libraries that the server needs",
    ),
    _topic(
        "the Python version",
        "localchat needs Python 3.9 or newer.",
        """My Python is old, how new must it be?
        From which Python release on does it run?
        Tell me the Python versions that are supported.
        Do I need a recent Python?
        {Which|What|which|what} {Python|python|Python version|version of Python|Python versions} {do I need|does localchat need|is needed|is required|does it need|works|work|are supported|is supported|should I use}{?|}
        {Does|Will|Can} {it|localchat|the client|the server} {work|run} {with|on} Python {3.8|3.9|3.10|3.11|3.12|3.13|2|2.7|3}{?|}
        {Is} {Python|python} {3.8|3.9|3.10|3.11|3.12|2.7} {enough|ok|okay|supported|too old|new enough|fine}{?|}
        {What is|Tell me} {the oldest Python|the minimum Python version|the lowest Python version|the Python version}{?|.|}
        How {new|old|recent} {must|may|can|should} {my Python|Python|the Python version|my Python version} be{?|}
        Is {my Python|Python 3.8|my old Python|Python 3.9|Python 3.12|an old Python|the newest Python} {good enough|recent enough|sufficient|okay for localchat|a problem|accepted|too new}{?|}
        {I have|I use|I run|We have|My computer has|There is only} Python {3.6|3.7|3.8|3.9|3.10|3.11|3.12|2.7}{, is that enough|, does it run|, will that work|, is that too old|. Is that fine|, can I use localchat}{?|}
        {With|On|For} which {Python|Python version|version of Python} {does it run|does localchat work|is localchat made|can I use it|will it work}{?|}
        {From|Since|Starting with|Up from} which {version of Python|Python version|Python} {does it work|does localchat run|can I use it|is it supported}{?|}
        {Must I|Should I|Do I have to|Do I need to} {update|upgrade|renew} {my Python|Python|the Python version}{| first| for localchat| for it}{?|}
        {My Python is|I have an|Mine is an|This is an} {old|older|ancient|outdated} {one|version|Python}{, is that too old|, does it still work|, must I update|, how new has it to be|. Is it new enough|, which one do I need}{?|}
        {python version|Python version|minimum Python|supported Python|version}{?|}""",
        things="the Python version that I need|the oldest Python that works|the minimum version of Python|the required Python version|the Python versions that work",
    ),
    _topic(
        "working offline",
        "Yes, everything runs on your own computer, without internet and without a download.",
        """I have no internet here, is that a problem?
        Will it run on a machine without network?
        Does any of my text leave this computer?
        Must a model be downloaded first?
        {Does|Do|Can|does|can} {it|localchat|the server|you|this} {work|run|answer|live} {offline|without internet|without the internet|without a network|locally|without a connection|on my own computer}{?|}
        {Do I|Does it|Do you|Does localchat} need {the internet|internet|a network|an internet connection|to download anything|to download a model|a download|the cloud}{?|}
        {Is|Are|Will} {my data|my messages|my text|my words|anything} {sent|sent anywhere|sent to the cloud|private|uploaded|stored|shared|sent over the internet}{?|}
        {Where|where} {do you run|are you running|do you live|does the model run|are my messages sent|is my data|are you|is the model}{?|}
        {Are you|Is this|Is it} {online|offline|local|in the cloud|private|on my computer|running locally|on the internet}{?|}
        {I am|We are|My computer is} {offline|without internet|on a plane|behind a firewall|not connected|in a train without network}{, does it still work|, can I use you|. Will localchat run|, is that okay|, can I still chat}{?|}
        {Will|Can|Could} {anything|something|my data|my chat|what I write|any data|my question} {leave my machine|go to the cloud|go over the network|reach a company|be uploaded|get sent away|go to the internet}{?|}
        {Do my messages|Do my texts|Does everything|Will all data|Do my words} {stay|remain} {here|on this computer|local|with me|private|on my machine}{?|}
        Is {an internet connection|the internet|a network|a download|a cloud account|a connection} {needed|required|necessary}{?| for it?| to chat?}
        {Do I have to|Must I|Should I|Do I need to} {download a model|download anything|be online|be connected|have a network|go online|fetch a model first}{?|}
        {Does|Can|Will} {the model|everything|the whole thing|the AI} {run|work|stay} {on this machine|on my laptop|here on my computer|at home|on my own hardware|locally}{?|}
        {Does|Will} {some|any|anything|a bit|a word} of {what I write|my data|my questions|this chat|my words} {go out|get out|leave this machine|go to a server|go anywhere}{?|}
        {Must|Should|Has} {something|anything|the model|a file} {be downloaded|be fetched|to be downloaded|come from the internet}{?| before?| at first?}
        {offline|privacy|internet|private|local|cloud|download}{?|}""",
        wishes="use it without internet|run everything locally|work offline|keep my data private|chat without a connection|use localchat on a plane|run it with no network",
    ),
    _topic(
        "the tests",
        "Type `make test`; the tests need no download.",
        """I changed the code, how do I see that it still works?
        Give me the command for the test suite.
        By which command are the tests started?
        Where do I find out whether all tests pass?
        {How|how} {do I|can I|to|do you|does one} {run|start|execute|call} {the|all|your|all the|the unit} {tests|test suite|unit tests|checks}{?|}
        {What|Which} {command|is the command that} {runs|starts} {the tests|the test suite|all tests|tests}{?|}
        {What does|What is} {make test|`make test`|"make test"}{ do| for|}{?|}
        {Are there|Does localchat have|Do you have|Is there} {tests|unit tests|a test suite|any tests}{?|}
        {How|how} do I {test|check|verify} {localchat|the project|the code|my changes|the build|my installation}{?|}
        {I|We} {edited|modified|fixed|touched|rewrote|improved} {the code|a file|something|a module|the source|the client|the server's code}{, how do I test it|, how do I check that nothing broke|. How do I check it|, what do I run now|, how can I be sure that it works|, does it still work}{?|}
        {After a change|After my changes|Before a commit|Before a pull request|When I edit the code}, {what do I run|how do I check it|which command checks it|how do I test|what should I run}{?|}
        {How|With which command|In what way} are {the tests|the unit tests|all tests|the checks} {run|started|executed|launched}{?|}
        {What|Which command|Which make target|Which target} {tests the code|checks the code|runs the unit tests|tests everything|executes the tests|verifies the project}{?|}
        {Did I break something|Is the code still correct|Does the code still work|Is my change right|Does my version work}{, how do I check|, how can I tell|, how do I find out}{?|}
        {Do the tests need|Does the test suite need|Does testing need} {a download|the internet|a model|a network}{?|}
        {Where are the tests|Where do I find the tests|Which tests are there|Which tests does the project have}{?|}
        {tests|test|run tests|make test|unit tests|testing|pytest}{?|}""",
        wishes="run the tests|check my changes|test the project|verify that nothing is broken|make sure the code still works|start the test suite|see whether the tests pass|prove that my change is fine",
    ),
    _topic(
        "stopping the server",
        "Press Ctrl-C in the terminal where the server runs.",
        """The server runs, how do I get it to stop?
        What do I press to end the server?
        In which way is the server shut down?
        Which keys close the server?
        {How|how} {do I|can I|to|do you|does one} {stop|end|quit|kill|shut down|close|exit|terminate|halt|turn off|switch off} {the|your|a|my} {server|localchat server|program}{?|}
        {How|how} {do I|can I|to} {stop|end|quit|exit|shut down|close|turn off} {localchat|it|this|you}{?|}
        {What|Which} {key|keys|command} {stops|ends|quits|closes} {the server|it|localchat}{?|}
        {I want to|I need to|I would like to|Please} {stop|quit|end|shut down|close} {the|my} server{.|}
        {Which|What} {key|keys|shortcut|key combination|command} {do I press to stop it|stops it|is for stopping|shuts it down|ends the program|turns the server off|do I use to quit|makes the server stop}{?|}
        {How|In what way|By which key} is the server {stopped|ended|closed|quit|turned off|terminated|switched off}{?|}
        {I have finished|I no longer need the server|I am done with the server|Enough for today|The server is still running|The server should not run any more}{, how do I stop it|, how do I turn it off|. How do I end it|, what do I press|, how do I close it}{?|}
        {Can|May|Could} {I|one|we} {stop|end|close|interrupt|quit} the server{| at any time| now| with a key| by hand}{?|}
        {The server|It|The program|localchat} {does not stop|keeps running|will not end|runs and runs|is still on|hangs}{, what do I press|, how do I stop it|. How do I end it}{?|}
        What do I {press|type|do} {to stop|to quit|to shut it down|to switch the server off|when the server should stop|so that the server ends}{?|}
        {stop|stop server|quit|exit|shutdown|shut down|stop the server|kill server|turn off}{?|}""",
        wishes="stop the server|end the server|shut the server down|switch the server off|kill the running server|quit the server cleanly|close the program|turn it off|get rid of the running server|make the server stop",
    ),
    _topic(
        "the licence",
        "localchat and this model are under the MIT licence.",
        """Under what terms is localchat published?
        Am I allowed to use it in my company?
        Do I have to pay for it?
        Tell me the license of the project.
        {What|Which|what|which} {licence|license} {does localchat have|is it|does it have|has localchat|is used|do you have|is this under|does the model have|is localchat under|applies}{?|}
        {What is|What's|Tell me} {the|your|the software} {licence|license}{?|.| of localchat?| of the model?}
        {Is|Are} {it|localchat|this|the model|the code|you} {free|open source|free software|MIT|free of charge|open|MIT licensed}{?|}
        {May|Can} I {use|sell|change|share|copy|modify} {localchat|it|the code|this} {commercially|at work|in my company|for free|in my product|freely}{?|}
        {How much does|What does} {localchat|it|this} cost{?|}
        {Am I|Are we|Is one|Is my company|Is my team} {allowed|permitted|free} to {use localchat|sell it|change the code|share it|copy it|use it commercially|use it at work|modify the source|build a product with it}{?|}
        {Do I have to|Do we have to|Must I|Must a company|Should I|Will I have to} {pay|pay for localchat|buy a licence|pay money|pay anything|buy it|pay for using it|pay something}{?|}
        {Does|Will} {it|localchat|the software|this|the model} cost {anything|money|something|much}{?|}
        {What is the price of|What are the costs of|How expensive is|How much money is} {localchat|the software|it|this program|the model}{?|}
        {Can|May|Could} {my company|a firm|a business|my school|anybody|everybody|we} {use|sell|change|copy|take} {localchat|it|the code|the software|the model} {for free|commercially|without paying|in a product|for business}{?|}
        {Under|With|On} {which|what} {licence|license|conditions|legal terms} {is the code|is localchat|is it|is the project|is the model} {published|released|given away|available|distributed}{?|}
        Is {commercial use|business use|selling it|use at work|changing the code|a fork} {allowed|permitted|okay|free|possible}{?|}
        {Is it|Is localchat|Is the software} {paid software|free for companies|without cost|for free|a commercial product|gratis|proprietary}{?|}
        {Am I|Are we|Is one|Is everybody} allowed to {use|run|install|have|take} {it|localchat|this} {at work|in our firm|in the office|at my workplace|in a company|for my business}{?|}
        {Is it|Would it be} {okay|legal|fine|allowed} to {use|run|sell|change} {it|localchat|this} {in a company|in our business|at the office|for customers|commercially}{?|}
        {licence|license|MIT|open source|free|copyright|price}{?|}""",
        things="the licence|the terms of use|the licence of the project|the licence of the code|the price of localchat|the conditions of use|the legal terms",
    ),
    _topic(
        "tools",
        'Send your functions as "tools" in the request; I answer with a call that your program runs.',
        """I have a Python function, are you able to call it?
        In what way do I tell you about my functions?
        Is function calling possible here?
        How is a tool passed to you?
        {Can|Do|can|do} you {call|use|support|know} {tools|functions|a tool|function calling|tool calls|a function|tool calling}{?|}
        {How|how} {do I|can I|to} {use|give you|define|add|offer|pass|send} {tools|functions|a tool|function calling|a function|tool calls}{?|}
        {Does|Will} {the server|localchat|it|the model} {support|know|have|do} {tools|functions|tool calls|function calling|tool calling}{?|}
        {How|how} {does|do} {tool calling|function calling|tools|tool calls|functions} work{?|}
        {What are|What is|Explain|Tell me about} {tools|tool calls|function calling|tool calling|a tool call}{?|.|}
        {I have|I wrote|There is|My program has} {a function|some tools|a tool for you|a few functions|a weather function|a search tool}{, can you call that|, how do I give that to you|, can you use that|. How do you learn about it|, how do I offer that}{?|}
        Are {tools|functions|tool calls|function calls} {supported|possible|understood|allowed|usable}{?| here?| by the model?|}
        {Are you able to|Will you|Would you|Could you} {call functions|use tools|call my function|work with tools|use a function|make tool calls|call a tool}{?|}
        {In which|In what} {field|format|form} {do tools go|do I send tools|are functions described|must the tools be|do I pass functions|is a tool defined}{?|}
        {How are tools sent|How is a function described|Where do I put the tools|How is a tool offered to you|How are functions given to the model|Where do my functions go}{?|}
        Who {runs the tool|executes the function|calls the function|runs the call}{| then| in the end| when you call it}{?|}
        {Does|Can|Will} the model {call tools|use functions|work with functions|make function calls|make use of tools}{?|}
        {tools|function calling|tool calls|functions|tool use|tool calling}{?|}""",
        wishes="give you a tool|let you call my functions|use function calling|offer you some tools|describe a function to you|make the model call a function|send tools with a request|define a tool",
    ),
    _topic(
        "thinking",
        "Yes, when you ask me to think, I first write a short thought and then the answer.",
        """Will you reason before answering if I want that?
        In what way can I see what you think?
        Is there a mode in which you think?
        How is thinking switched on?
        {Can|Do|can|do} you {think|reason|think step by step|think first|have thoughts|think before you answer}{?|}
        {How|how} {do I|can I|to} {make you think|turn on thinking|switch off thinking|turn on reasoning|enable thinking|disable thinking|see your thoughts|use reasoning}{?|}
        {Does|Is} {the model|thinking|reasoning|it} {think|supported|reason|possible|there}{?|}
        {What is|What does|What are} {enable_thinking|a think block|thinking|reasoning|<think>|reasoning content}{| do| here| for}{?|}
        {Are you|Is this} a {reasoning|thinking} model{?|}
        {Are you able to|Would you|Will you|Could you} {think|reason|think a little|think before the answer|show your thoughts|think about it first|write down your thoughts}{?|}
        {Is there|Have you|Do you have|Does the model have} {a thinking mode|a reasoning mode|a way of thinking|some reasoning|a think mode|a switch for thinking}{?|}
        {Where do your thoughts appear|Where do I see the thoughts|How does thinking work|How is reasoning turned on|How is reasoning asked for|When do you think|How do you think}{?|}
        {What is in a think block|What is a thought|What happens when you think|What are the think tags for|What is reasoning for}{?|}
        {I want|I would like|I'd like} {you to think|you to reason first|to see your thoughts|a thought before the answer|you to think before you reply|a model that thinks}{, how?|, is that possible?|, can you do that?|.|}
        {Which|What} {setting|switch|parameter|field} {turns on thinking|makes you think|is for reasoning|switches the thoughts on|controls thinking}{?|}
        Can I {switch|turn} {thinking|reasoning|the thoughts} {on|off|on and off}{?|}
        {thinking|reasoning|think mode|enable_thinking|thoughts|reasoning mode}{?|}""",
        wishes="let you think first|turn on thinking|see your thoughts|make the model reason|switch the thinking off|have you think before the answer|read your reasoning|ask for a thought first",
    ),
)

_OPENINGS = ("Hi! ", "Hello, ", "Please: ", "One question: ", "Sorry, ", "Tell me, ", "Okay. ", "I wonder: ", "And ")
# Small words that carry no meaning here: losing one of them is one more paraphrase.
_DROPPABLE = {"the", "a", "an", "do", "does", "is", "i", "to", "me", "can", "it", "of", "please", "you"}


# Ways to ask for a subject of which only the key words are left: they teach which words matter.
_FRAMES = phrases(
    """{What about|How about|Something about|Anything about|A question about|Questions about|Info about|Information on|A word on|Details of} $key{?|.|}
    {I have a question about|I'd like to know about|I want to know more about|I am interested in|I need to know about|I ask about|I read about|I was asked about|My friend asked about} {the |}$key{.|}
    {Can you explain|Could you explain|Please explain|Explain|Explain to me|Describe|Tell me more about|Tell me all about|Say something about|Help me with|I need help with} {the |}$key{.|?|}
    {$key, how|$key, what is that|$key, is that possible|$key, how does that work|$key, where|$key, please|$key, tell me|$key, what do I do|$key, explain}{?|}
    {I want|I need|I would like|I'd love to have|I am looking for|We need|We want|I cannot find|I do not understand|I miss|I do not see} {the |}$key{, how|, what now|, what do I do|, can you help|, where is it|, is that possible|}{?|.}
    {How does|How do I do|How is it with|What do I do for|What is the matter with|How do people handle|What do you say about|Where do I find} {the |}$key{?|}
    {In which way|In what way|By what means|With which command|With what option|Through which setting} {do I get|is|do I have|do we get|do they do} {the |}$key{?|}
    {Is it possible to have|Is there something for|Is there a way for|Does localchat know|Does this program know|Do you know anything on|Do you know about} {the |}$key{?|}""",
)
_BEFORE = phrases(
    """{I am new here.|I am a beginner.|I just began.|I have a problem.|Something is unclear.|I am lost.|I read the README.|One more thing.|Now to something else.|Good.|Well.|Help.|Listen.|Dear assistant,|So,|Right,|Quick question:|Next question:|My question is:|I have been thinking:|A friend wants to know:|Before I begin:}""",
)
_AFTER = phrases(
    """{Thanks.|Thank you.|I do not know.|I forgot it.|Please be brief.|I need that now.|Can you tell me?|Do you know?|Any idea?|That is my question.|Please help.|I want to understand that.}""",
)


def question(source: Source) -> Exchange:
    """A question about localchat or the model; in training also roughened and reduced to key words."""
    subject, templates, lines, answer = source.choice(TOPICS)
    asked = source.word(lines) if source.held_out else _trained_question(source, templates, lines)
    return Exchange(asked, answer, f"The user asks about {subject}.")


def _trained_question(source: Source, templates: tuple[str, ...], lines: Pool) -> str:
    kind = source.rng.random()
    if kind < 0.1:
        # The last of a topic's patterns holds bare key words.
        asked = source.phrase(_FRAMES, key=source.expand(templates[-1]).rstrip("?.!"))
    else:
        asked = source.word(lines) if kind < 0.7 else source.expand(source.choice(templates))
    asked = _roughened(source, asked)
    if source.chance(0.12):
        return f"{source.phrase(_BEFORE)} {asked}"
    return f"{asked} {source.phrase(_AFTER)}" if source.chance(0.1) else asked


def _roughened(source: Source, text: str) -> str:
    kind = source.rng.random()
    if kind < 0.15:
        words = text.split(" ")
        small = [i for i, word in enumerate(words) if word.lower() in _DROPPABLE]
        if small and len(words) > 3:
            del words[source.choice(small)]
        return " ".join(words)
    if kind < 0.25:
        return source.choice(_OPENINGS) + text
    return chat_skills.roughened(source, text)
