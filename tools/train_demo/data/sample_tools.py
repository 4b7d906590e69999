"""Tools of common documentation and tutorials, with natural requests.

People try these tools first, so their names are trained. The values in the requests are trained or held out, like all
others. `$x` in a request is the value of the parameter x.
"""

# ruff: noqa: E501  (phrasings are data: one per line, whatever its length)

from __future__ import annotations

from .tool_schemas import Param, ToolSpec

_UNIT = Param("unit", "enum", ("celsius", "fahrenheit"), required=False)
_UNITS = Param("units", "enum", ("celsius", "fahrenheit"), required=False)


def _weather(name: str, place: str, *more: Param, description: str) -> ToolSpec:
    asks: tuple[str, ...] = (
        "{What is|What's|How is|How's|Tell me|Show me|Check|Get} the {|current }weather {like |}in $place{| today| now| right now}{?|.|}",
        "{How warm|How cold|How hot} is it in $place{| today| now}?",
        "{Is it|Will it be} {raining|sunny|cold|warm} in $place{|?}",
        "{What is|What's} the temperature in $place{| in $unit| in degrees $unit}?",
        "{I want to know|I need|Please give me} the weather {in|for|of} $place{| in $unit}{.|}",
        "weather {in |}$place",
        "{Do I need|Should I take} an umbrella in $place{| today}?",
    )
    asks = tuple(ask.replace("$place", f"${place}") for ask in asks)
    if more:
        asks = tuple(ask.replace("$unit", f"${more[0].name}") for ask in asks)
    else:
        asks = tuple(ask.replace("| in $unit", "").replace("| in degrees $unit", "") for ask in asks)
    return ToolSpec(name, "get", "weather", (Param(place, "city"), *more), description, asks)


SAMPLE_TOOLS: tuple[ToolSpec, ...] = (
    _weather("get_weather", "location", description="Get current temperature for a given location."),
    _weather("get_weather", "city", description="Get the weather of a city."),
    _weather("get_weather", "location", _UNIT, description="Returns the weather at a location."),
    _weather("get_weather", "location", _UNITS, description="Retrieves current weather for the given location."),
    _weather("get_current_weather", "location", _UNIT, description="Get the current weather in a given location"),
    _weather("current_conditions", "place", description="The weather at a place, now."),
    ToolSpec(
        "get_time",
        "get",
        "time",
        (Param("city", "city"),),
        "Get the local time in a city.",
        (
            "{What time is it|What's the time|What is the time} {|now }in $city?",
            "{Tell me|Show me|Give me} the time in $city{.|}",
        ),
    ),
    ToolSpec(
        "send_email",
        "send",
        "email",
        (Param("to", "email"), Param("subject", "text", required=False), Param("body", "text")),
        "Send an email to a given recipient with a subject and message.",
        (
            '{Send|Write} an {email|e-mail|mail} to $to {saying|that says|with the text} "$body"{.|}',
            "{Please |}{email|mail} $to: $body",
            '{Send|Write} {|an email to }$to {an email |}with {the |}subject "$subject" and {the |}body "$body"{.|}',
        ),
    ),
    ToolSpec(
        "get_delivery_date",
        "get",
        "delivery date",
        (Param("order_id", "code"),),
        "Get the delivery date for a customer's order.",
        (
            "{When|What day} will {my |}order $order_id {arrive|be delivered|come}?",
            "{Where is|What about} my order $order_id?",
            "{What is|Tell me} the delivery date {of|for} {order |}$order_id{?|}",
        ),
    ),
    ToolSpec(
        "get_stock_price",
        "get",
        "stock price",
        (Param("symbol", "code"),),
        "Get the current stock price.",
        (
            "{What is|What's|Tell me} the {stock |share |}price of $symbol?",
            "{How much is|How is} {|the stock }$symbol {|trading at }{now|today}?",
        ),
    ),
    ToolSpec(
        "search_knowledge_base",
        "search",
        "knowledge base",
        (Param("query", "query"),),
        "Query a knowledge base to retrieve relevant info on a topic.",
        (
            "{Search|Look in} the knowledge base for $query{.|}",
            "{What does our knowledge base say|Find information} about $query{?|}",
        ),
    ),
    ToolSpec(
        "web_search",
        "search",
        "web",
        (Param("query", "query"),),
        "Search the web.",
        ("{Search|Look on} the {web|internet} for $query{.|}", "{Google|Search online for|Look up} $query{.|}"),
    ),
    ToolSpec(
        "get_horoscope",
        "get",
        "horoscope",
        (Param("sign", "enum", ("Aries", "Taurus", "Gemini", "Leo", "Virgo", "Aquarius")),),
        "Get today's horoscope for an astrological sign.",
        (
            "{What is my horoscope|Give me the horoscope|What do the stars say}{?| today?|?} I am {an |a |}$sign{.|}",
            "{Tell me|Show me} the horoscope {of|for} $sign{.|}",
        ),
    ),
    ToolSpec(
        "add",
        "add",
        "numbers",
        (Param("a", "integer"), Param("b", "integer")),
        "Add two numbers.",
        ("{What is|How much is|Calculate|Compute} $a {+|plus} $b{?|}", "{Add|Sum} $a and $b{.|}"),
    ),
    ToolSpec(
        "multiply",
        "multiply",
        "numbers",
        (Param("a", "integer"), Param("b", "integer")),
        "Multiply two integers.",
        ("{What is|How much is|Calculate|Compute} $a {*|times|x} $b{?|}", "{Multiply} $a {by|and|with} $b{.|}"),
    ),
    ToolSpec(
        "set_alarm",
        "set",
        "alarm",
        (Param("time", "time"),),
        "Set an alarm.",
        ("{Wake me {up |}at|Set an alarm for|Set the alarm to} $time{.|}",),
    ),
    ToolSpec(
        "set_reminder",
        "set",
        "reminder",
        (Param("text", "text"), Param("time", "time", required=False)),
        "Set a reminder.",
        ("{Remind me|Set a reminder}{| at $time}: $text", "{Remind me|Set a reminder} at $time: $text"),
    ),
    ToolSpec(
        "translate_text",
        "translate",
        "text",
        (Param("text", "text"), Param("language", "enum", ("French", "German", "Spanish", "Italian"))),
        "Translate a text into another language.",
        (
            '{Translate|Please translate} "$text" {to|into} $language{.|}',
            '{How do you say|What is} "$text" in $language?',
        ),
    ),
    ToolSpec(
        "convert_currency",
        "convert",
        "currency",
        (
            Param("amount", "integer"),
            Param("from", "enum", ("EUR", "USD", "GBP", "JPY")),
            Param("to", "enum", ("CHF", "SEK", "INR", "CAD")),
        ),
        "Convert an amount of money.",
        ("{Convert|Change|Exchange} $amount $from {to|into} $to{.|}", "{How much|What} is $amount $from in $to?"),
    ),
    ToolSpec(
        "turn_on_light",
        "turn on",
        "light",
        (Param("room", "query"),),
        "Turn on the light in a room.",
        ("{Turn|Switch} on the {light|lights|lamp} in {the |}$room{.|}", "{Light|Lights} on in $room{.|}"),
    ),
    ToolSpec(
        "read_file",
        "read",
        "file",
        (Param("path", "file"),),
        "Read a file and return its text.",
        ("{Read|Open|Show me|Print} {the file |}$path{.|}", "{What is in|What does} {the file |}$path{ say|}?"),
    ),
    ToolSpec(
        "run_code",
        "run",
        "code",
        (Param("code", "text"),),
        "Run Python code.",
        ("{Run|Execute} {this|the} {Python |}code: $code", "{Run|Execute}: $code"),
    ),
)
