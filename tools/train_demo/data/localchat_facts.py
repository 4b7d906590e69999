"""Questions about localchat and about the model itself, with true answers.

Each topic has phrasings for training, where {a|b|} multiplies them to dozens, and held-out ones.
The answers must stay true of the README; a test compares ports, flags and paths.
"""

# ruff: noqa: E501  (phrasings are data: one per line, whatever its length)

from __future__ import annotations

from typing import NamedTuple

from .chat_skills import ENDS, Exchange
from .source import Pool, Source, phrases


class Topic(NamedTuple):
    """One question: its subject in a few words, its phrasings, its answer."""

    subject: str
    questions: Pool
    answer: str


def _topic(subject: str, answer: str, trained: str, held_out: str) -> Topic:
    return Topic(subject, phrases(trained, held_out), answer)


TOPICS: tuple[Topic, ...] = (
    _topic(
        "who I am",
        "I am localchat's built-in demo model, a tiny program that runs on your own computer.",
        """{What is|What's|what is|Tell me|May I know|Say} your name{?|.|}
        {Who|who|What|what} are you{?| exactly?| really?|}
        {Do you have a name|How are you called|What are you called|What should I call you|How should I call you|your name|name?}
        {Introduce yourself|Tell me about yourself|Tell me who you are|Describe yourself|Say who you are|Present yourself}{| please|.|!}
        {Which|What} {model|AI|bot|language model|LLM|assistant|chatbot} {are you|is this|am I talking to|do I talk to|answers me}{?|}
        {What kind of|What sort of} {model|bot|program|AI|assistant} are you{?|}
        {With whom|Who|To whom} am I {talking|speaking|chatting}{ to| with|}{?|}
        {Are you|Is this} {localchat|the demo model|the built-in model|a demo|a bot|a program|a computer|an AI|a robot|a machine|a language model}{?|}
        {your name|name|identity|your identity|who you are}""",
        """Who am I speaking with here?
        Please give me your name.
        What do people call you?
        Can you introduce yourself to me?
        Which language model is this one?""",
    ),
    _topic(
        "other models",
        "No, I am localchat's own demo model, trained from nothing for this project.",
        """{Are|are|Aren't} you {ChatGPT|chatgpt|GPT|GPT-4|Claude|Gemini|Llama|Qwen|Mistral|Siri|Alexa|a human|human|a person|a real person|OpenAI|DeepSeek|Copilot|Grok|a man|a woman}{?|}
        {Is this|Am I talking to|Do I talk to|Are you based on|Were you made by|Do you come from|Are you made by} {ChatGPT|GPT|Claude|Gemini|Llama|Qwen|Mistral|OpenAI|Google|Meta|Microsoft|Anthropic|a human|a person}{?|}
        {ChatGPT|GPT-4|Claude|Gemini|OpenAI|being a human|Alexa}""",
        """You are ChatGPT, right?
        Is it Claude that answers me?
        Am I chatting with a real human?
        Did Google make you?""",
    ),
    _topic(
        "who made me",
        "I was made by the localchat project and trained on text that a program wrote.",
        """{Who|who} {made|created|built|trained|wrote|developed|programmed|designed|invented} you{?|}
        {How|how} were you {made|trained|created|built|programmed}{?|}
        {Where|where} do you come from{?|}
        {Who is|Who's} your {maker|creator|author|developer|father|boss|owner}{?|}
        {What|On what|What data|Which data} were you trained on{?|}
        {How|When|Where} did you {learn|learn to talk|learn to speak|learn that}{?|}
        {Tell me about|What is} your {training|training data|origin|creator}{?|.}
        {your maker|your author|your creator|your training|your origin|training data}""",
        """Which people developed you?
        What data was used to train you?
        By whom were you built?
        How did your training work?""",
    ),
    _topic(
        "how large I am",
        "I have about three and a half million parameters and my file is smaller than 4 MB.",
        """{How|how} {big|large|small|heavy|tiny} are you{?|}
        {How many} {parameters|weights|bytes|megabytes|MB} {do you have|are in you|does the model have|do you need|does the demo model have}{?|}
        {What is|What's|Tell me} {your size|the size of the model|the size of the demo model|your file size|the model size|your parameter count}{?|.}
        {How big|How large|How small} is {the|your|this} {demo |built-in |}{model|model file|file|gguf}{?|}
        {Are you|Is the model} {big|small|a big model|a large model|tiny|large}{?|}
        {model size|your size|parameter count|how many parameters|number of parameters}""",
        """What size does the built-in model have?
        How much space does your file need?
        Tell me how many parameters you have.
        Is your model file large?""",
    ),
    _topic(
        "what I can do",
        "I can chat a little, answer questions about localchat, call tools, repeat, count and make lists.",
        """{What|what} can you do{?| for me?|}
        {What|what} are {you able to do|your skills|your abilities|you good at|you good for|your functions|your capabilities|you capable of}{?|}
        {How|how} can you {help|help me|assist me|be useful}{?|}
        {What can I|What should I|What may I} {ask you|ask|do with you|do here|say to you|ask you to do|try}{?|}
        {Can you|Could you|Will you} {help me|help|do something|do anything|do something for me|assist me}{?|}
        {Tell me|Show me|Explain|List} {what you can do|your skills|your abilities|your features|what you do}{.|}
        {I need help|help|Help|Help me|help me|Help!|HELP|What do you do?|What is your purpose?|What are you for?|features|skills}
        {your skills|your abilities|features|skills|your functions|your purpose}""",
        """Which things are you able to do for me?
        Give me an overview of your abilities.
        In what ways can you help me?
        What are the things you can do?""",
    ),
    _topic(
        "what I cannot do",
        "I know nothing about the world, and I cannot translate, write stories or do hard sums.",
        """{What|what} {can you not|can't you|cannot you} do{?|}
        {What|what} are your {limits|limitations|weaknesses|weak points|weak spots|faults|flaws|problems}{?|}
        {What are you|What is it that you are} {not able to do|bad at|not good at|unable to do}{?|}
        {Is there something|Is there anything|What is there that} you {cannot do|can't do|can not do}{?|}
        {Tell me|Show me|Explain|List} {your limits|what you cannot do|what you can't do|your limitations|your weak spots}{.|}
        {Can you do everything|Do you know everything|Are you smart|Are you intelligent|Are you clever|How smart are you|Do you make mistakes|Can I trust you|Are you always right|Are your answers correct|Are you reliable}{?|}
        {limits|limitations|your limits}""",
        """Which things are too hard for you?
        Where are your limits?
        Tell me about your weaknesses.
        What is impossible for you?""",
    ),
    _topic(
        "what localchat is",
        "localchat is a small chat client in plain Python and a server around llama.cpp.",
        """{What is|What's|what is|whats} {localchat|local chat|Localchat|this localchat|this project|this program|this software|localchat exactly|this}{?|}
        {Explain|Describe|Tell me about|Tell me what is} {localchat|this project|this program|this software}{.|}
        {What does} {localchat|this project|this program} do{?|}
        {What is} {localchat|this project|this program} {for|good for|about|made for}{?|}
        {I do not know|I have never heard of|I am new to} {localchat|this project}{.|}
        {What is the purpose of|What is the idea of|What is special about|Why should I use|Who needs} {localchat|this project}{?|}
        {about localchat|localchat|localchat?|info about localchat}""",
        """Can you tell me what localchat is?
        What kind of software is localchat?
        In one sentence, what is localchat?
        What do people use localchat for?""",
    ),
    _topic(
        "starting with make",
        "Type `make run`: it builds everything once and starts the server.",
        """{How|how} {do I|can I|to|do we|does one} {build|install|set up|compile|get|build and start|install and start|get started with|begin with} {localchat|the project|this project|this|everything|it|the program|local chat}{?|}
        {What does|What is} {make run|`make run`|"make run"}{ do| for| doing|}{?|}
        {How|how} do I {get started|start from scratch|begin|install this|set this up|get it running}{?|}
        {What is|Show me|Tell me} {the quickest way to start|the first step|the first command|how to install|how to build|the quick start|how to get started}{?|.|}
        {What should I do|What do I type|What do I do} {first|after cloning|after the download|to begin|in a fresh clone}{?|}
        {installation|install|quickstart|build|make run|setup|getting started}""",
        """I have just cloned localchat, what now?
        Which command builds localchat and starts it?
        How does the installation of localchat work?
        What do I have to type to install it?""",
    ),
    _topic(
        "starting the server",
        "Start the server with `python -m localchat.server`, or with `make run` the first time.",
        """{How|how} {do I|can I|to|do you|does one|would I} {start|run|launch|bring up|boot|fire up} {the|your|a|my} {server|localchat server|chat server|API server}{?| from the terminal?|}
        {What|Which} {command|is the command that|line} {starts|runs|launches} {the|your} {server|localchat server}{?|}
        {Tell me|Show me|Explain|I want to know} how {to|I} {start|run|launch} {the|a} {server|localchat server}{.|}
        {I want to|I need to|Help me to|Help me|I would like to} {start|run|launch} {the|a} {server|localchat server}{.|}
        {Start the server how|server start|start server|run server|launch server|server command|how start server}{?|}
        {What do I type|What do I need|What do I enter} to {start|run|launch} the server{?|}
        {starting the server|the start of the server|running the server|a server start|launching the server}""",
        """Give me the command for starting the server.
        What must I type so that the server starts?
        The server is not running, how do I start it?
        In which way is the server launched?""",
    ),
    _topic(
        "another model",
        "Give the file to the server: `python -m localchat.server MODEL.gguf`. Any GGUF model works.",
        """{How|how} {do I|can I|to|do you} {use|load|run|serve|choose|select|open|start|try|add} {another|a different|my own|a bigger|a larger|a better|an other|a new|a GGUF|a gguf|some other|a real} {model|model file|gguf|GGUF file|GGUF model|LLM}{?|}
        {Can|Could|May} {I|it|localchat|the server} {use|load|run|serve} {other models|another model|my own model|a bigger model|Llama|Qwen|a GGUF file|any model|other GGUF files|a larger model|Mistral}{?|}
        {Which|What} {models|model files|formats|file formats|model formats|file types} {work|can I use|are supported|does localchat support|does it support|can it load|can be loaded|does the server run|are possible}{?|}
        {Does|Will} {localchat|the server|it} {support|work with|run|load} {other models|GGUF|gguf files|Llama models|Qwen|my model|every model|any model}{?|}
        {change the model|use another model|switch model|supported models|load model|other models|model file|gguf}{?|}""",
        """I would like to talk to a bigger model, how?
        How is a different GGUF file loaded?
        What models does the server accept?
        Is it possible to serve my own model?""",
    ),
    _topic(
        "the port",
        "The server listens on 127.0.0.1, port 8080, unless you give `--port`.",
        """{Which|What|which|what} {port|address|host|IP|IP address|default port} {does|will} {the server|localchat|the localchat server|it|your server} {use|listen on|run on|have|take|listen to}{?| by default?|}
        {On which|On what|At which|At what} {port|address|host} {does|can|is} {the server|localchat|it} {run|listen|running|listening|be reached|available}{?|}
        {What is|What's|Tell me|Show me} {the|the default|your|the server's} {port|address|host|port number|server address|listening port}{?|.| of the server?| of localchat?}
        {Where|where} {does the server listen|is the server|is the server running|can I find the server|does the server run|do I reach the server|is localchat running}{?|}
        {port|default port|server port|port number|server address|host and port|listen address}{?|}
        {Is the port|Is it port|Does it use port|Is the server on port} {8080|8000|80|5000|3000}{?|}
        {port|default port|server port|port number|server address|TCP port}""",
        """Tell me the port number that the server has.
        Which TCP port is the standard one?
        At which address will I find the server?
        Does localchat have a default port?""",
    ),
    _topic(
        "changing the port",
        "Use `--port` and `--host`, for example `python -m localchat.server --port 9000`.",
        """{How|how} {do I|can I|to|do you} {change|set|choose|select|pick|configure|use|switch} {the|another|a different|a new|my own} {port|host|address|port number}{?| of the server?| for the server?}
        {Can|May} {I|the server|localchat|it} {change the port|use another port|run on another port|use port 9000|listen on a different port|set the port|run on port 5000}{?|}
        {The port|Port 8080} is {taken|in use|busy|blocked|used|already in use|occupied}{.| what now?|, what can I do?|}
        {How|how} {do I|can I} {open the server to|reach the server from|listen on|serve} {my network|another computer|all addresses|the local network|other machines|the LAN}{?|}
        {change port|set port|another port|other port|different host|change host}{?|}""",
        """8080 is not free, how do I take a different port?
        Is it possible to use another port number?
        What sets the port of the server?
        How can the server listen on another address?""",
    ),
    _topic(
        "the options of the server",
        "The options are --host, --port, --ctx, --parallel, --gpu-layers, --threads, --api-key and --alias.",
        """{What|Which|what|which} {options|flags|arguments|parameters|settings|switches|command line options} {does the server have|are there|can I use|does the server take|exist|does localchat.server have|can I give the server|are available|does it accept}{?|}
        {List|Show me|Tell me|Name|Give me|What are} {the|all|all the} {options|flags|arguments|settings|command line options|server options}{.|?| of the server| please}
        {How|how} {do I|can I} {configure|set up|tune|adjust|customise} the server{?|}
        {Is there|Are there|Does the server have} {an option|options|flags|settings|a list of options|any flags|a configuration}{?|}
        {options|flags|server options|server flags|settings|configuration|arguments|command line}{?|}""",
        """Can you name the flags of the server?
        What can be configured on the command line?
        Give me an overview of the server's options.
        Which command line arguments does the server know?""",
    ),
    _topic(
        "the context",
        "Use `--ctx` with a number of tokens, for example `--ctx 2048`.",
        """{How|how} {do I|can I|to} {change|set|choose|increase|raise|reduce|limit|make bigger|enlarge} {the|the size of the} {context|context length|context size|context window|number of tokens}{?|}
        {Which|What} {option|flag|setting|argument} {sets|changes|is for|controls} {the context|the context size|the context length|context}{?|}
        {What is|What does} {--ctx|the option --ctx|ctx|the ctx option}{| do| for| mean}{?|}
        {How long|How big|How large} {is|can be} {the context|the prompt|the context window|my prompt|a prompt|the conversation}{?|}
        {My|The} {prompt|text|conversation|context} is too {long|big|short|small}{.|}
        {context|context size|context length|ctx|context window|--ctx}{?|}""",
        """I need a larger context, which flag is it?
        By which option is the context length set?
        How do I give the model more context?
        What limits the length of a prompt?""",
    ),
    _topic(
        "many users",
        "Yes, many requests run at the same time; `--parallel` sets how many.",
        """{Can|can|Could} {many|several|two|more|multiple|ten|a lot of} {users|people|clients|programs|requests} {use|talk to|ask|connect to|share} {the server|it|localchat|you}{| at once| at the same time| together| in parallel}{?|}
        {How many} {users|clients|requests|people|connections|streams} {can use the server|are possible|can it serve|at the same time|in parallel|at once|does it handle}{?|}
        {Does|Can} {the server|localchat|it} {handle|serve|support|run|answer} {many|several|parallel|multiple|concurrent} {requests|users|clients|streams}{?|}
        {What is|What does|How do I use} {--parallel|the option --parallel|parallel}{| do| for}{?|}
        {parallel|parallel requests|concurrent requests|batching|many users|--parallel|concurrency}{?|}""",
        """Is it possible that several people use the server together?
        Does it work with more than one client at a time?
        Can I send two requests simultaneously?
        How do I set the number of parallel requests?""",
    ),
    _topic(
        "the API key",
        "Start the server with `--api-key KEY`; clients then have to send that key.",
        """{How|how} {do I|can I|to} {set|use|require|protect the server with|add|give|configure|need} {an|the|a} {API key|api key|password|key|token}{?|}
        {How|how} {do I|can I|to} {protect|secure|lock|restrict} {the server|my server|localchat|access to the server}{?|}
        {Do I need|Is there|Does the server need|Must I have|Does it need|Do I have to give} {an|a} {API key|api key|key|password|token}{?|}
        {What is|What does|Which option is} {--api-key|the option --api-key|for the API key|the api key for}{| do| for}{?|}
        {API key|api key|authentication|auth|security|--api-key|key|password protection}{?|}""",
        """Can I lock my server with a secret key?
        What must I do so that only people with a key get in?
        Which flag sets the API key?
        Is an API key necessary?""",
    ),
    _topic(
        "the graphics card",
        "All layers go to the GPU when the build of llama.cpp has one; `--gpu-layers` changes that.",
        """{Can|Does|Will|can|does} {localchat|the server|it|you} {use|support|run on|work with|need} {a|the|my} {GPU|gpu|graphics card|NVIDIA card|CUDA|video card|Metal}{?|}
        {How|how} {do I|can I|to} {use|enable|turn on|switch on|get} {the|a|my} {GPU|gpu|graphics card|CUDA|GPU support|GPU acceleration}{?|}
        {How many} {layers|GPU layers|model layers} {go to|run on|are on|are put on} the {GPU|graphics card}{?|}
        {What is|What does} {--gpu-layers|the option --gpu-layers|gpu-layers}{| do| for}{?|}
        {Is there|Do you have} {GPU support|CUDA support|GPU acceleration|support for GPUs}{?|}
        {GPU|gpu|cuda|CUDA|GPU layers|graphics card|metal|--gpu-layers|gpu support}{?|}""",
        """I own an NVIDIA graphics card, is it used?
        Will my GPU make it faster?
        Which option moves layers to the GPU?
        Does the model run on CUDA?""",
    ),
    _topic(
        "threads and speed",
        "Use `--threads` to set the number of CPU threads.",
        """{How|how} {do I|can I|to} {set|change|choose|limit|use|reduce} {the|the number of|more|fewer|the count of} {threads|CPU threads|cores|CPU cores|processor cores}{?|}
        {How many} {threads|cores|CPU threads|CPUs} {does the server use|does it use|are used|will it use|can I use}{?|}
        {What is|What does} {--threads|the option --threads|threads}{| do| for}{?|}
        {Which|What} {option|flag} {sets|is for|changes|controls} {the threads|threads|the number of threads|CPU usage|the cores}{?|}
        {threads|CPU threads|number of threads|cpu cores|--threads|cpu}{?|}""",
        """The server should use only two cores, how?
        By which flag do I set the thread count?
        Is it possible to limit the CPU threads?
        What controls how many CPU cores are busy?""",
    ),
    _topic(
        "the name of the model",
        "Use `--alias NAME`; clients then see the model under that name.",
        """{How|how} {do I|can I|to} {rename|name|give a name to|set the name of|change the name of|give another name to|set an alias for} {the|my|a} {model|served model|model in the API}{?|}
        {What is|What does} {--alias|the option --alias|alias|the alias}{| do| for}{?|}
        {Which|What} {option|flag} {sets|changes|is for} {the model name|the alias|the name of the model|the model's name}{?|}
        {Can I|May I} {rename the model|give the model another name|set an alias|choose the model name|use another model name}{?|}
        {alias|model name|model alias|--alias|rename model}{?|}""",
        """I want clients to see another model name, how?
        By which flag is the model renamed?
        Is it possible to set an alias for the model?
        What is the alias option good for?""",
    ),
    _topic(
        "the base URL",
        "The base URL is http://127.0.0.1:8080/v1.",
        """{What is|What's|Tell me|Give me|Show me|Which is} {the|your|the right|the correct} {base URL|base url|URL|url|API URL|address for OpenAI clients|link|endpoint URL|OpenAI base URL}{?|.|}
        {Which|What} {base URL|base url|URL|url} {do I use|do I need|should I use|must I set|do I give|does the client need|is right|is used}{?|}
        {Where|where} do I {point|connect} {my client|the OpenAI client|the openai package|my program|my SDK}{| to}{?|}
        {What do I|What must I|What should I} {write|set|put|enter} {as|for} {base_url|the base URL|OPENAI_BASE_URL|base url}{?|}
        {base URL|base url|base_url|API URL|url|URL}{?|}""",
        """Please give me the URL for my OpenAI client.
        To which URL do I send requests?
        What goes into the base_url field?
        Can you tell me the API's base URL?""",
    ),
    _topic(
        "OpenAI clients",
        "Yes, every OpenAI client works: set its base URL to http://127.0.0.1:8080/v1.",
        """{Can|Could|May} I {use|connect|try} {the OpenAI package|the openai package|an OpenAI client|OpenAI clients|the OpenAI SDK|the openai library|LangChain|other clients|any OpenAI SDK|the openai Python library}{| with it| with localchat| with this server}{?|}
        {Is|Are} {the server|localchat|it|the API|you} {OpenAI compatible|compatible with OpenAI|compatible with the OpenAI API|like the OpenAI API|OpenAI-compatible}{?|}
        {Does|Will} {it|the server|localchat|this} {work|speak|run|go} {with OpenAI clients|the OpenAI protocol|with the openai package|with other clients|with the OpenAI SDK|the OpenAI API}{?|}
        {How|how} {do I|can I|to} {use|connect|set up} {the openai package|an OpenAI client|the OpenAI SDK|OpenAI clients|the openai library}{?|}
        {openai|OpenAI|OpenAI client|OpenAI compatible|openai package|OpenAI SDK|compatibility}{?|}""",
        """Will my program for OpenAI run with this server?
        Does the server understand the API of OpenAI?
        I have the openai package, does that work?
        Which other clients can talk to it?""",
    ),
    _topic(
        "the terminal client",
        'Type `python -m localchat "your text"`; the answer is streamed to the terminal.',
        """{How|how} {do I|can I|to} {chat|talk|ask a question|send a message|use it|use localchat|ask something|write to you} {in|from|on|at} {the terminal|the command line|the shell|a terminal|my terminal|a shell|bash}{?|}
        {Is there|Do you have|Does localchat have} {a terminal client|a command line client|a CLI|a command line tool|a terminal program|a command for the terminal}{?|}
        {How|how} {do I|can I|to} {use|start|run} the {terminal client|command line client|client in the terminal|CLI}{?|}
        {What is|What does} {python -m localchat|`python -m localchat`|the terminal client}{| do| for}{?|}
        {Which|What} {command|is the command} {asks the model|sends a message|starts the client|for chatting in the terminal|chats}{?|}
        {terminal|terminal client|command line client|cli|CLI|shell|python -m localchat}{?|}""",
        """I like to work in a shell, how do I ask you there?
        Give me the command for chatting in a terminal.
        Can I send a question from the command line?
        How is the command line client used?""",
    ),
    _topic(
        "another server",
        "Use `--base-url URL` or set OPENAI_BASE_URL.",
        """{How|how} {do I|can I|to} {use|point|connect|send} {the terminal client|the client|localchat|the terminal program|python -m localchat} {with|to} {another server|a different server|another URL|a remote server|my own server|OpenAI|Ollama|vLLM|llama-server|LM Studio}{?|}
        {What is|What does} {OPENAI_BASE_URL|--base-url|the option --base-url|the variable OPENAI_BASE_URL}{| do| for}{?|}
        {Can|Does|Will} {the client|the terminal client|localchat's client} {work with|talk to|use|connect to} {another server|other servers|OpenAI|Ollama|vLLM|llama-server|a remote server|LM Studio}{?|}
        {Which|What} {variable|environment variable|option|flag} {sets the server|sets the URL|tells the client where the server is|is for another server|changes the server of the client}{?|}
        {another server|other server|remote server|--base-url|OPENAI_BASE_URL|environment variable|different server}{?|}""",
        """My server is on a different machine, how does the client find it?
        Is the client able to speak with Ollama?
        Which environment variable does the client read?
        How do I tell the client to use a remote server?""",
    ),
    _topic(
        "the endpoints",
        "There are POST /v1/chat/completions, GET /v1/models and GET /health.",
        """{What|Which|what|which} {endpoints|routes|paths|API endpoints|API routes|HTTP endpoints|URLs} {are there|does the server have|does localchat have|exist|can I use|does it offer|are available|does the API have}{?|}
        {List|Show me|Tell me|Name|Give me} {the|all|all the} {endpoints|routes|paths|API endpoints|HTTP routes}{.|?|}
        {What is|What's} {the endpoint|the path|the route} {for chat|for chatting|for the models|for chat completions|of the chat API}{?|}
        {Where|To which path|To which endpoint} do I {send|post} {chat requests|a request|messages|my request|a POST}{?|}
        {What does|What can} the {API|HTTP API|REST API|server's API} {offer|do|look like}{?|}
        {endpoints|routes|API|paths|api endpoints|REST API|http}{?|}""",
        """Could you name the HTTP routes of the server?
        Which paths can I request?
        Give me an overview of the API.
        What can I call over HTTP?""",
    ),
    _topic(
        "health",
        "Ask GET /health; it tells whether the server is ready.",
        """{How|how} {do I|can I|to} {check|see|know|test|find out|ask} {whether|if|that} {the server|it|localchat} {is ready|is running|is alive|works|is up|is healthy|is on}{?|}
        {Is there|Does the server have} {a health check|a health endpoint|a status page|a way to check the server|a readiness check}{?|}
        {What is|What does} {/health|GET /health|the health endpoint|the path /health}{| do| for}{?|}
        {Is the server|Is it} {ready|alive|healthy|up|running|on}{?|}
        {health|health check|status|server status|/health|readiness|liveness}{?|}""",
        """Where can I see that the server is alive?
        By which request do I test whether it is ready?
        Which endpoint is for health checks?
        How would a script find out that the server is up?""",
    ),
    _topic(
        "listing models",
        "Ask GET /v1/models; it lists the models that the server offers.",
        """{How|how} {do I|can I|to} {list|see|get|find|show|ask for} {the|all|all the|the available} {models|models of the server|served models|model names|model list}{?|}
        {What is|What does} {/v1/models|GET /v1/models|the path /v1/models|the models endpoint}{| do| for| return}{?|}
        {Which|What} {endpoint|path|route|request} {lists the models|shows the models|is for models|gives the model names|returns the models}{?|}
        {Which models|What models} does the server {offer|have loaded|have now|serve now}{?|}
        {list models|model list|/v1/models|available models|show models}{?|}""",
        """I want to see what models are loaded, how?
        Where does the server tell its model names?
        Which request returns the list of models?
        Is there a way to list all models?""",
    ),
    _topic(
        "streaming",
        'Send "stream": true; the answer then comes token by token as server-sent events.',
        """{How|how} {do I|can I|to|does} {stream|get a stream|streaming work|use streaming|stream the answer|turn on streaming|enable streaming|get the tokens one by one|receive tokens}{?|}
        {Does|Can|Will} {the server|localchat|it} {stream|support streaming|stream answers|stream tokens|send tokens one by one|use server-sent events|use SSE}{?|}
        {What is|What does|Tell me about} {streaming|server-sent events|SSE|"stream": true|the stream option|stream}{| do| mean| here}{?|}
        {Is there|Do you have|Is} {streaming|a streaming mode|streaming possible|streaming supported|support for SSE}{?|}
        {stream|streaming|SSE|server-sent events|stream tokens|stream true|sse}{?|}""",
        """I want to see the words as they come, how?
        Is it possible to receive the answer token by token?
        In what form does the server send a stream?
        Which field in the request turns on streaming?""",
    ),
    _topic(
        "the Python client",
        'Write `from localchat import Client, chat`; then `chat("Hello")` asks the server.',
        """{How|how} {do I|can I|to} {use|call|import|write} {the client|localchat|the Python client|the library|the package|it} {in|from|with} {Python|a Python program|my Python code|a script|my program|code|Python code}{?|}
        {How|how} {do I|can I|to} {import|call} {localchat|the client|the Client class|chat}{?|}
        {Show me|Give me|Tell me|What is} {an import line|the import|the Python import|an example in Python|a Python example|how to import localchat|a Python sample}{.|?|}
        {Is there|Do you have} {a Python client|a Python library|a Python API|a client for Python|a Python package}{?|}
        {What do I|What must I} {import|write in Python}{?|}
        {python client|Python|import|Python example|library|client|python code|from localchat import}{?|}""",
        """I write a Python program, how do I call the model?
        What is the import line of the client?
        Which names do I import from localchat?
        Can I chat from my own Python code?""",
    ),
    _topic(
        "copying the client",
        "Copy four files: sse.py, events.py, wire.py and client.py. They need only the standard library.",
        """{Can|May|Could} I {copy|vendor|bundle|include|take} {the client|localchat's client|only the client|the client files|the client code}{| into my project| into my program| into my script}{?|}
        {Which|What} {files|parts|modules} {do I copy|belong to the client|are the client|make up the client|do I need for the client|must I copy|does the client have}{?|}
        {How|how} {do I|can I|to} {copy|vendor|bundle|embed} the client{?| into my project?|}
        {How many} files {does the client have|is the client|do I copy|has the client}{?|}
        {vendor|vendoring|copy the client|client files|which files|four files}{?|}""",
        """I do not want to install anything, may I copy the client?
        Which source files are needed for the client?
        Tell me the files that I take over into my project.
        What must be copied to have the client in my script?""",
    ),
    _topic(
        "what must be installed",
        "The client needs only Python's standard library; the server needs llama-cpp-python.",
        """{What|Which} {dependencies|packages|libraries|requirements|things} {does|do} {localchat|the client|the server|it|I} {need|have|require|have to install}{?|}
        {What|what} {do I need to install|must I install|is needed|is required|do I need|has to be installed|are the requirements|are the dependencies}{?| for the server?| for the client?| to run it?}
        {Does|Do} {the client|the server|localchat|it} {need|have|require} {dependencies|packages|other packages|llama-cpp-python|numpy|anything else|a library|pip packages}{?|}
        {Is|Must} {llama-cpp-python|llama.cpp|numpy|pip|a compiler} {needed|be installed|required|necessary}{?|}
        {dependencies|requirements|packages|llama-cpp-python|prerequisites|deps}{?|}""",
        """Is there something that I have to install before?
        On which packages does localchat depend?
        Tell me the requirements.
        Does the server depend on another library?""",
    ),
    _topic(
        "the Python version",
        "localchat needs Python 3.9 or newer.",
        """{Which|What|which|what} {Python|python|Python version|version of Python|Python versions} {do I need|does localchat need|is needed|is required|does it need|works|work|are supported|is supported|should I use}{?|}
        {Does|Will|Can} {it|localchat|the client|the server} {work|run} {with|on} Python {3.8|3.9|3.10|3.11|3.12|3.13|2|2.7|3}{?|}
        {Is} {Python|python} {3.8|3.9|3.10|3.11|3.12|2.7} {enough|ok|okay|supported|too old|new enough|fine}{?|}
        {What is|Tell me} {the oldest Python|the minimum Python version|the lowest Python version|the Python version}{?|.|}
        {python version|Python version|minimum Python|supported Python|version}{?|}""",
        """My Python is old, how new must it be?
        From which Python release on does it run?
        Tell me the Python versions that are supported.
        Do I need a recent Python?""",
    ),
    _topic(
        "working offline",
        "Yes, everything runs on your own computer, without internet and without a download.",
        """{Does|Do|Can|does|can} {it|localchat|the server|you|this} {work|run|answer|live} {offline|without internet|without the internet|without a network|locally|without a connection|on my own computer}{?|}
        {Do I|Does it|Do you|Does localchat} need {the internet|internet|a network|an internet connection|to download anything|to download a model|a download|the cloud}{?|}
        {Is|Are|Will} {my data|my messages|my text|my words|anything} {sent|sent anywhere|sent to the cloud|private|uploaded|stored|shared|sent over the internet}{?|}
        {Where|where} {do you run|are you running|do you live|does the model run|are my messages sent|is my data|are you|is the model}{?|}
        {Are you|Is this|Is it} {online|offline|local|in the cloud|private|on my computer|running locally|on the internet}{?|}
        {offline|privacy|internet|private|local|cloud|download}{?|}""",
        """I have no internet here, is that a problem?
        Will it run on a machine without network?
        Does any of my text leave this computer?
        Must a model be downloaded first?""",
    ),
    _topic(
        "the tests",
        "Type `make test`; the tests need no download.",
        """{How|how} {do I|can I|to|do you|does one} {run|start|execute|call} {the|all|your|all the|the unit} {tests|test suite|unit tests|checks}{?|}
        {What|Which} {command|is the command that} {runs|starts} {the tests|the test suite|all tests|tests}{?|}
        {What does|What is} {make test|`make test`|"make test"}{ do| for|}{?|}
        {Are there|Does localchat have|Do you have|Is there} {tests|unit tests|a test suite|any tests}{?|}
        {How|how} do I {test|check|verify} {localchat|the project|the code|my changes|the build|my installation}{?|}
        {tests|test|run tests|make test|unit tests|testing|pytest}{?|}""",
        """I changed the code, how do I see that it still works?
        Give me the command for the test suite.
        By which command are the tests started?
        Where do I find out whether all tests pass?""",
    ),
    _topic(
        "stopping the server",
        "Press Ctrl-C in the terminal where the server runs.",
        """{How|how} {do I|can I|to|do you|does one} {stop|end|quit|kill|shut down|close|exit|terminate|halt|turn off|switch off} {the|your|a|my} {server|localchat server|program}{?|}
        {How|how} {do I|can I|to} {stop|end|quit|exit|shut down|close|turn off} {localchat|it|this|you}{?|}
        {What|Which} {key|keys|command} {stops|ends|quits|closes} {the server|it|localchat}{?|}
        {I want to|I need to|I would like to|Please} {stop|quit|end|shut down|close} {the|my} server{.|}
        {stop|stop server|quit|exit|shutdown|shut down|stop the server|kill server|turn off}{?|}""",
        """The server runs, how do I get it to stop?
        What do I press to end the server?
        In which way is the server shut down?
        Which keys close the server?""",
    ),
    _topic(
        "the licence",
        "localchat and this model are under the MIT licence.",
        """{What|Which|what|which} {licence|license} {does localchat have|is it|does it have|has localchat|is used|do you have|is this under|does the model have|is localchat under|applies}{?|}
        {What is|What's|Tell me} {the|your|the software} {licence|license}{?|.| of localchat?| of the model?}
        {Is|Are} {it|localchat|this|the model|the code|you} {free|open source|free software|MIT|free of charge|open|MIT licensed}{?|}
        {May|Can} I {use|sell|change|share|copy|modify} {localchat|it|the code|this} {commercially|at work|in my company|for free|in my product|freely}{?|}
        {How much does|What does} {localchat|it|this} cost{?|}
        {licence|license|MIT|open source|free|copyright|price}{?|}""",
        """Under what terms is localchat published?
        Am I allowed to use it in my company?
        Do I have to pay for it?
        Tell me the license of the project.""",
    ),
    _topic(
        "tools",
        'Send your functions as "tools" in the request; I answer with a call that your program runs.',
        """{Can|Do|can|do} you {call|use|support|know} {tools|functions|a tool|function calling|tool calls|a function|tool calling}{?|}
        {How|how} {do I|can I|to} {use|give you|define|add|offer|pass|send} {tools|functions|a tool|function calling|a function|tool calls}{?|}
        {Does|Will} {the server|localchat|it|the model} {support|know|have|do} {tools|functions|tool calls|function calling|tool calling}{?|}
        {How|how} {does|do} {tool calling|function calling|tools|tool calls|functions} work{?|}
        {What are|What is|Explain|Tell me about} {tools|tool calls|function calling|tool calling|a tool call}{?|.|}
        {tools|function calling|tool calls|functions|tool use|tool calling}{?|}""",
        """I have a Python function, are you able to call it?
        In what way do I tell you about my functions?
        Is function calling possible here?
        How is a tool passed to you?""",
    ),
    _topic(
        "thinking",
        "Yes, when you ask me to think, I first write a short thought and then the answer.",
        """{Can|Do|can|do} you {think|reason|think step by step|think first|have thoughts|think before you answer}{?|}
        {How|how} {do I|can I|to} {make you think|turn on thinking|switch off thinking|turn on reasoning|enable thinking|disable thinking|see your thoughts|use reasoning}{?|}
        {Does|Is} {the model|thinking|reasoning|it} {think|supported|reason|possible|there}{?|}
        {What is|What does|What are} {enable_thinking|a think block|thinking|reasoning|<think>|reasoning content}{| do| here| for}{?|}
        {Are you|Is this} a {reasoning|thinking} model{?|}
        {thinking|reasoning|think mode|enable_thinking|thoughts|reasoning mode}{?|}""",
        """Will you reason before answering if I want that?
        In what way can I see what you think?
        Is there a mode in which you think?
        How is thinking switched on?""",
    ),
)

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
    """{Fill me in on|What can you say of|Give me a hint about} $key{.|?|}""",
)
_BEFORE = phrases(
    """{I am new here.|I am a beginner.|I just began.|I have a problem.|Something is unclear.|I am lost.|I read the README.|One more thing.|Now to something else.|Good.|Well.|Help.|Listen.|Dear assistant,|So,|Right,|Quick question:|Next question:|My question is:|I have been thinking:|A friend wants to know:|Before I begin:}""",
    """{There is one thing that I do not get.|Just wondering:}""",
)
_AFTER = phrases(
    """{Thanks.|Thank you.|I do not know.|I forgot it.|Please be brief.|I need that now.|Can you tell me?|Do you know?|Any idea?|That is my question.|Please help.|I want to understand that.}""",
    """{It matters to me.|Let me know.}""",
)


def question(source: Source, topic: int = -1) -> Exchange:
    """A question about localchat or the model; in training also roughened and reduced to key words."""
    subject, questions, answer = TOPICS[topic] if topic >= 0 else source.choice(TOPICS)
    if not source.held_out and source.chance(0.2):
        # The last line of a topic's phrasings holds bare key words.
        keys = source.expand(questions.trained[-1]).rstrip("?.!")
        asked = source.phrase(_FRAMES, key=keys)
    else:
        asked = source.phrase(questions)
    if not source.held_out:
        asked = _roughened(source, asked)
        if source.chance(0.12):
            asked = f"{source.phrase(_BEFORE)} {asked}"
        elif source.chance(0.1):
            asked = f"{asked} {source.phrase(_AFTER)}"
    return Exchange(asked, answer, f"The user asks about {subject}.")


def _roughened(source: Source, text: str) -> str:
    kind = source.rng.random()
    if kind < 0.15:
        words = text.split(" ")
        small = [i for i, word in enumerate(words) if word.lower() in _DROPPABLE]
        if small and len(words) > 3:
            del words[source.choice(small)]
        return " ".join(words)
    if kind < 0.25:
        return text.lower()
    if kind < 0.35:
        opening = source.choice(
            ("Hi! ", "Hello, ", "Please: ", "One question: ", "Sorry, ", "Tell me, ", "Okay. ", "I wonder: ", "And ")
        )
        return opening + text
    if kind < 0.42:
        return text.rstrip("?.") + source.choice(ENDS)
    return text
