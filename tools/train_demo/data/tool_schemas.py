"""Made-up tools: name, description, parameters, and the words of requests for them.

A name joins a verb and a noun; some of these are held out. `schema` writes a tool as a short or a full-size JSON Schema
of OpenAI's format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Union

from . import values
from .source import Source, listed, phrases
from .words import WORDS

Value = Union[str, int, float, bool]

VERBS = listed(
    "get,find,create,delete,update,send,book,cancel,open,close,start,stop,check,list,add,remove,search,"
    "schedule,show,set,archive,order,rename,move,copy,read,print,play,pause,share,upload,download,lock,unlock,"
    "approve,reject,assign,track,count,convert,export,import,verify,reserve,publish,record,calculate,fetch,"
    "register,translate,invite,block,renew,measure,clean,ship,rent,post,save,lookup,reset,enable,disable,"
    "resume,charge,refund,submit,load,mute,rate,scan,sync,sell",
    "annotate,calibrate,transcribe,allocate,quarantine,prune,certify,defrost,appraise,reroute,endorse",
)
NOUNS = listed(
    "weather,ticket,invoice,order,flight,hotel,room,meeting,reminder,alarm,email,message,note,task,contact,"
    "customer,product,price,stock,song,playlist,movie,recipe,book,file,folder,report,photo,video,document,"
    "account,payment,booking,table,taxi,train,bus,car,bike,parcel,delivery,address,route,map,light,lamp,door,"
    "heater,thermostat,camera,device,server,backup,database,user,group,channel,post,comment,article,page,"
    "event,calendar,course,student,teacher,lesson,exam,patient,doctor,prescription,garden,plant,pump,sensor,"
    "robot,printer,timer,score,game,player,team,match,ballot,vote,survey,question,quote,joke,word,number,"
    "currency,loan,budget,expense,receipt,refund,coupon,shipment,warehouse,shelf,item,package,subscription,"
    "license,password,key,badge,visitor,elevator,parking,ferry,boat,museum,concert,seat,menu,drink,pizza,cake,"
    "sauna,pool,tent,bill,horoscope,temperature,forecast,timezone,holiday,salary,contract,job,vacancy,skill,"
    "vendor,album,podcast,radio,ringtone,window,curtain,fan,oven,fridge,battery,signal,antenna,satellite",
    "kiosk,greenhouse,locker,syllabus,aquarium,beacon,manuscript,pallet,sprinkler,vaccine,warrant,catalogue,"
    "dashcam,forklift,hydrant,jersey,kennel,lantern,nozzle,roster,silo,vineyard",
)

# Verbs of tools that a question may request.
QUESTION_VERBS = ("get", "find", "check", "show", "fetch", "lookup", "read", "list", "track")

# By kind of value: names of parameters, prepositions before such a value ("in Paris"), and a function that makes one.
_KINDS: dict[str, tuple[Any, tuple[str, ...], Callable[[Source], Value]]] = {
    "city": (
        listed("city,location,place,town,destination,origin,region,area,venue", "municipality,hometown,borough"),
        ("in", "for", "near"),
        values.city,
    ),
    "date": (
        listed(
            "date,day,due_date,start_date,when,deadline,check_in,end_date", "anniversary,graduation_day,holiday_start"
        ),
        ("on", "for"),
        values.date,
    ),
    "time": (
        listed("time,start_time,at,hour,end_time,slot,departure", "curfew,kickoff,showtime"),
        ("at",),
        values.clock_time,
    ),
    "person": (
        listed("name,person,customer,owner,user_name,guest,contact,assignee,author", "sponsor,grantee,chairman"),
        ("for", "by", "from"),
        values.person,
    ),
    "email": (
        listed("email,to,recipient,address,user_email,cc,email_address", "bcc,mail_target,inbox_address"),
        ("to", "for"),
        values.email,
    ),
    "integer": (
        listed(
            "count,amount,quantity,limit,minutes,size,pages,people,level,days,guests,nights,year,volume,seconds",
            "headcount,dozens,mileage",
        ),
        (),
        values.integer,
    ),
    "number": (
        listed("price,weight,amount,temperature,distance,rate,latitude,height,budget,factor", "dosage,tariff,wattage"),
        (),
        values.decimal,
    ),
    "code": (
        listed(
            "id,code,order_id,number,ticket_id,reference,key,sku,serial,tracking_number",
            "folio,voucher_no,barcode_text",
        ),
        ("number", "with id"),
        values.code,
    ),
    "text": (
        listed(
            "message,text,note,body,title,subject,content,comment,description,reason,label,summary",
            "caveat,blurb",
        ),
        ("saying", "that says", "with the text"),
        lambda source: values.sentence(source, 8) if source.chance(0.4) else values.phrase(source, 6),
    ),
    "query": (
        listed("query,search,term,keyword,topic,q,question", "lookup_phrase,sought_text"),
        ("for", "about"),
        lambda source: values.phrase(source, 4),
    ),
    "file": (
        listed("file,path,filename,url,source,link,file_path", "attachment_path,csv_location,spool_file"),
        ("from", "at"),
        values.file_name,
    ),
    "foreign": (
        listed("word,text,phrase,nickname,caption,name,title", "inscription,motto,monogram"),
        (),
        values.foreign,
    ),
    "enum": (
        listed("unit,priority,status,color,mode,format,language,category,type,style,currency", "tier,palette,variant"),
        ("in", "as"),
        values.word,
    ),
    "flag": (
        listed("urgent,public,dry_run,recursive,notify,silent,private,force,verbose", "anonymous,draft_only,eager"),
        (),
        lambda source: source.chance(0.5),
    ),
}
# Kinds of values that only common tools have.
_COMMON_VALUES: dict[str, Callable[[Source], Value]] = {
    "small": values.small_number,
    "title": values.title,
    "full_name": values.full_name,
    "thing": values.thing,
    "room": values.room,
    "street": values.street,
    "nation": values.nation,
    "origin": values.origin,
    "say": lambda source: values.phrase(source, 6),
}
_VALUES = {**{kind: make for kind, (_, _, make) in _KINDS.items()}, **_COMMON_VALUES}
# Prepositions by the name of the parameter, which override those of its kind; and names that follow a number.
_PREPOSITIONS = {
    "origin": ("from",),
    "destination": ("to",),
    "author": ("by",),
    "owner": ("by", "of"),
    "title": ("called", "named", "with the title"),
    "subject": ("about", "called"),
    "text": ("with the text", "saying"),
}
_COUNTED = ("minutes", "pages", "people", "days", "guests", "nights", "seconds")
_KIND_NAMES = tuple(_KINDS)
_WEIGHTS = (16, 8, 6, 8, 9, 10, 6, 9, 9, 8, 4, 4, 9, 3)
# Enums are trained most, since they are the hardest: only the tool's line shows whose option a word is.
_WEIGHTS_TRAINED = tuple(48 if kind == "enum" else weight for kind, weight in zip(_KIND_NAMES, _WEIGHTS))
POOLS = (VERBS, NOUNS, *(names for names, _, _ in _KINDS.values()))
NAMES_HELD_OUT = {name for words in POOLS for name in words.held_out}
# The parts of compound names. A held-out word is never a whole name, but may begin one.
_PARTS = tuple(sorted({*WORDS, *(name for words in POOLS for name in (*words.trained, *words.held_out))}))

_ENUMS: dict[str, tuple[str, ...]] = {
    "unit": ("celsius", "fahrenheit", "kelvin", "km", "miles", "metric", "imperial", "c", "f"),
    "priority": ("low", "normal", "high", "urgent"),
    "status": ("open", "closed", "pending", "active", "done"),
    "color": ("red", "green", "blue", "yellow", "white", "black", "pink"),
    "mode": ("fast", "slow", "auto", "manual", "quiet", "eco"),
    "format": ("pdf", "csv", "json", "html", "text", "png"),
    "language": ("English", "French", "German", "Spanish", "Italian", "Japanese", "en", "fr", "de"),
    "currency": ("EUR", "USD", "GBP", "JPY", "CHF"),
}

_TYPES = {"integer": "integer", "small": "integer", "number": "number", "flag": "boolean"}

DESCRIPTIONS = phrases(
    """$Verb {a|the|one} $noun.
    $Verb {a|the} $noun {by|with} its data.
    {Use|Call} this to $verb {a|the} $noun.
    This {tool|function} can $verb {a|the|any} $noun.
    $Verb {a|the} $noun {for the user|in the system|now}.
    {Tool|Function} to $verb {a|the} $noun.
    Allows you to $verb {a|the} $noun.
    $Noun: $verb.
    Will $verb {a|the} $noun{ when the user asks for it| on request|}.""",
    """Lets the assistant $verb {a|the} $noun.
    Helper that will $verb one $noun.""",
)
PARAM_DESCRIPTIONS = phrases(
    """The $name.
    The $name {of|for} the $noun.
    $Name of the $noun.
    {Which|What} $name to use.
    {Optional|The} $name{ to use| for this|}.
    A $name, e.g. $example
    The $name, {for example|such as} $example.
    $Name""",
    """The $name that is wanted.
    Give the $name here, like $example""",
)


@dataclass(frozen=True)
class Param:
    """One parameter of a tool."""

    name: str
    kind: str
    options: tuple[str, ...] = ()
    required: bool = True
    # Whether the name suggests its kind of value. A made-up or held-out name does not, so its value needs the name in
    # the request instead of a preposition.
    telling: bool = True

    @property
    def words(self) -> str:
        """The name as a user would write it."""
        return spoken(self.name)

    def value(self, source: Source) -> Value:
        """A value of the parameter."""
        return source.choice(self.options) if self.options else _VALUES[self.kind](source)

    @property
    def prepositions(self) -> tuple[str, ...]:
        """Words that can stand before the value instead of the name."""
        usual = _KINDS[self.kind][1] if self.kind in _KINDS else ()
        return _PREPOSITIONS.get(self.name, usual) if self.telling else ()

    @property
    def is_counted(self) -> bool:
        """Whether the name follows its number: four people, ten minutes."""
        return self.telling and self.name in _COUNTED

    @property
    def json_type(self) -> str:
        """The JSON schema type."""
        return _TYPES.get(self.kind, "string")


@dataclass(frozen=True)
class ToolSpec:
    """A tool."""

    name: str
    verb: str
    noun: str
    params: tuple[Param, ...]
    description: str = ""
    # Patterns of requests; empty for a made-up tool.
    asks: tuple[str, ...] = ()


def spoken(name: str) -> str:
    """`due_date`, `due-date` and `dueDate` as words."""
    text = "".join(" " + c.lower() if c.isupper() else c for c in name)
    return text.replace("_", " ").replace("-", " ").replace(".", " ").strip()


def styled(source: Source, *words: str) -> str:
    """Words joined to a name, in one of the usual styles."""
    style = source.rng.random()
    if style < 0.8:
        return "_".join(words)
    if style < 0.93:
        return words[0] + "".join(word.capitalize() for word in words[1:])
    return "-".join(words) if style < 0.97 else "".join(words)


def _param(source: Source, kind: str) -> Param:
    if kind == "enum":
        name = _any_word(source) if source.chance(0.4) else source.word(_KINDS["enum"][0])
        known = _ENUMS.get(name)
        n = source.rng.randrange(2, 5)
        if known and source.chance(0.7):
            options = tuple(source.rng.sample(known, min(n, len(known))))
        else:
            options = tuple(values.word(source) for _ in range(n))
        return Param(name, kind, options)
    name = source.word(_KINDS[kind][0])
    telling = not source.chance(0.6 if source.held_out else 0.7)
    if not telling:
        name = _any_word(source)
        if not source.held_out and source.chance(0.12):
            name = styled(source, _any_word(source), name)
    elif source.chance(0.1):
        name = styled(source, source.word(NOUNS), name)
    return Param(name, kind, telling=telling and not source.held_out)


def _any_word(source: Source) -> str:
    """A word that is unrelated to the tool. Held-out words are made up."""
    if source.held_out or source.chance(0.5):
        return values.word(source)
    if source.chance(0.6):
        return source.choice(WORDS)
    # A model hardly generates a token at the beginning of a name if no trained name begins with it. Compounds may begin
    # with any word.
    while (name := values.compound(source, _PARTS)) in NAMES_HELD_OUT:
        pass
    return name


def random_tool(source: Source, verb: str = "", noun: str = "") -> ToolSpec:
    """A made-up tool, with a given verb or noun if it should resemble another tool."""
    # Unrelated words force the model to read the tools instead of learning words by heart.
    if not verb and source.chance(0.1):
        verb = source.choice(QUESTION_VERBS)
    verb = verb or (_any_word(source) if source.chance(0.55) else source.word(VERBS))
    noun = noun or (_any_word(source) if source.chance(0.6) else source.word(NOUNS))
    while noun == verb:
        noun = source.word(NOUNS)
    name = styled(source, verb, noun)
    if source.chance(0.06):
        name = styled(source, noun, verb)
    n = source.rng.choices((0, 1, 2, 3, 4), (4, 38, 36, 16, 6))[0]
    weights = _WEIGHTS if source.held_out else _WEIGHTS_TRAINED
    params: dict[str, Param] = {}
    while len(params) < n:
        param = _param(source, source.rng.choices(_KIND_NAMES, weights)[0])
        params.setdefault(param.name, param)
    optional = source.chance(0.4)
    listed = tuple(
        replace(param, required=i == 0 or not (optional and source.chance(0.6)))
        for i, param in enumerate(params.values())
    )
    description = ""
    if source.chance(0.85):
        description = source.phrase(DESCRIPTIONS, verb=verb, noun=noun, Verb=verb.capitalize(), Noun=noun.capitalize())
    return ToolSpec(name, verb, noun, listed, description)


def schema(source: Source, tool: ToolSpec) -> dict[str, Any]:
    """The tool as JSON schema; full-size, short or bare."""
    size = source.rng.random()
    full = size < 0.33
    properties: dict[str, Any] = {}
    for param in tool.params:
        entry: dict[str, Any] = {"type": param.json_type}
        if param.options:
            entry["enum"] = list(param.options)
        if full and source.chance(0.85):
            entry["description"] = _param_description(source, tool, param)
        properties[param.name] = entry
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    required = [param.name for param in tool.params if param.required]
    if source.chance(0.8):
        parameters["required"] = required
    if full and source.chance(0.25):
        parameters["additionalProperties"] = False
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = parameters
    if full and source.chance(0.2):
        function["strict"] = True
    if size > 0.85:
        return function
    return {"type": "function", "function": function}


def _param_description(source: Source, tool: ToolSpec, param: Param) -> str:
    example = str(param.value(source))
    return source.phrase(
        PARAM_DESCRIPTIONS, name=param.words, noun=tool.noun, Name=param.words.capitalize(), example=example
    )
