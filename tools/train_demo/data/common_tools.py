"""Tools that programs commonly have, with requests as people write them: values stand where English puts them.

Made-up tools teach to read names; these teach that what follows "from" is an origin. Every tool and parameter goes by
several names, so that even here they have to be read.
"""

# ruff: noqa: E501  (tools and phrasings are data: one per line, whatever its length)

from __future__ import annotations

import re

from .source import Source
from .tool_schemas import HELD_OUT, Param, ToolSpec, styled

# One tool per paragraph: name(parameter: kind, ...), its description, and requests in which $1 is the value of the first
# parameter. A ? marks what a request may leave out; kinds with / list the options of an enum.
_TOOLS = """
{book|reserve|order|find}_{ride|trip|seat|connection}({origin|from|start|from_city|departure_city}: city, {destination|to|target|to_city|arrival_city}: city, {date|day|travel_date|when}?: date)
{Book a ride between two cities.|Book a seat.|Find a connection.}
{Book|Get me|I need|Find me|Please book|I would like} a {train|bus|ferry|ride|seat|ticket} from $1 to $2{ on $3|}{.|, please.|}
{I want to|I have to|We need to|I'd like to} {go|travel|get} from $1 to $2{ on $3|}{.|!|}
{Is there|Do you have|Can I get} a {train|bus|ferry|ride} from $1 to $2{ on $3|}?
{To|I want to go to} $2 from $1{ on $3|}{.|, please.}

{plan|find|get|show}_{route|directions|way}({start|from|origin|a}: city, {end|to|destination|b}: city, {mode|travel_mode|by}?: car/bike/foot)
{Plan a route.|Directions between two places.}
{How do I get|Show me the way|What is the way|Directions} from $1 to $2{ by $3|}{?|.|}
{Plan a route|Find a way|Give me directions|Navigate} from $1 to $2{ by $3|}{.|}
{How far is it|What is the distance} from $1 to $2?

{reserve|book}_{room|stay|lodging|hotel}({city|place|town|location}: city, {nights|number_of_nights}: small, {check_in|arrival|from_date|date}?: date)
{Reserve a room.|Book a place to stay.}
{Book|Reserve|I need|Find me|Get me} {a hotel|a room|an apartment} in $1 for $2 nights{, from $3| from $3| starting $3|}{.|, please.|}
{I am staying|We stay|We will be} in $1 for $2 nights{ from $3|}, {book a room|we need a hotel|find us a room}.
$2 nights in $1{ from $3|}{, please.|.|}

{rent|hire|book}_{vehicle|wheels}({city|place|pickup|location}: city, {days|duration_days|number_of_days}: small)
{Rent a vehicle.|Rent something to drive.}
{Rent|Hire|Book|Get me|I need} a {car|bike|scooter|van} in $1 for $2 days{.|, please.|}
{For $2 days I need|For $2 days get me} a {car|bike|van} in $1{.|}

{schedule|create|plan|add|set_up}_{meeting|appointment|call|event}({title|subject|topic|name}: title, {date|day|when}: date, {time|start|start_time|at}: time)
{Schedule a meeting.|Put something into the calendar.}
{Schedule|Plan|Set up|Arrange|Create|Put} {a meeting|an appointment|a call} {called|named|with the title} $1 on $2 at $3{.|, please.|}
{Schedule|Plan|Add} "$1" {for|on} $2 at $3{.|}
{We meet|There is a meeting} on $2 at $3, {call it|title} "$1".
{Meeting|Appointment|Event} on $2 at $3: $1

{invite|add}_{guest|member|participant}({name|person|guest|who}: full_name, {event|to|meeting}: title)
{Invite somebody to an event.|Add a guest.}
{Invite|Please invite|Ask|Bring} $1 to {the event |the meeting |}$2{.|}
{Invite|Add} $1 {to|for} "$2"{.|, please.}
{I want|I'd like} $1 to come to {the event |}"$2"{.|}

{send|write|post}_{sms|text|message|note}({to|recipient|person|contact}: person, {text|message|body|content}: say)
{Send a short message.|Send a text.}
{Text|Message|Write|Tell} $1: $2
{Send|Write} {a text|a message|a note} to $1{: $2| saying "$2"|, "$2"}
{Tell|Let} $1 {that|know} "$2"{.|}
{Send|Write} $1 {a message|a text}: "$2"

{call|phone|dial}_{person|contact|number}({name|person|who|contact}: person)
{Call somebody.|Start a phone call.}
{Call|Phone|Ring|Dial|Ring up} $1{.|, please.|!| now.|}
{I want to|I need to|Let me|I have to} {talk to|speak to|call|phone} $1{.|}
{Give|Get} $1 {a call|a ring|on the phone}{.|}

{set|start|create}_{countdown|stopwatch|kitchen_timer}({seconds|duration|length|n}: small, {label|name|title}?: thing)
{Start a countdown.|Count down some seconds.}
{Start|Set|Begin|Run} a {countdown|stopwatch} {of|for|with} $1 seconds{ for $2| called $2| for the $2|}{.|, please.|}
{Give me|Wait|Count down} $1 seconds{.|, please.|}
$1 seconds{ for the $2|}{, please.|.|}

{set|change|adjust}_{level|dial|setting}({level|percent|value|to|degrees}: small)
{Set the level.|Change how much.}
{Set|Turn|Change|Put|Adjust} the {volume|brightness|heating|thermostat|speed} to $1{ percent| degrees|}{.|, please.|}
{Make it|I want it at|Set it to|Go to} $1{.|}
{Volume|Brightness|Heating|Speed} {to |at |: }$1{.|}

{switch|control|set}_{device|appliance|power}({device|what|name|thing}: thing, {room|where|place}?: room)
{Switch a device.|Turn something on or off.}
{Turn|Switch} {on|off} the $1{ in the $2|}{.|, please.|}
{Turn|Switch} the $1{ in the $2|} {on|off}{.|, please.|}
{The $1 should be on|I want the $1 off}{.|, please.}

{play|start|stream}_{music|audio|radio|album}({artist|band|by|musician}: title, {album|name|what}?: title)
{Play music.|Play an album.}
{Play|Put on|Start|Stream} {something|music|songs|anything} {by|from|of} $1{.|, please.|!|}
{Play|Put on|Start} {the album|the record} $2 {by|from|of} $1{.|, please.|}
{Play|Put on} "$2" {by|from} $1{.|, please.|!}
{I want to hear|Let me hear|I'd like to listen to} {$1|"$2" by $1}{.|}

{play|queue|hear|sing}_{track|tune|hymn|piece}({title|name|track|what}: title, {artist|by|singer|band|composer}: title)
{Play a track.|Play a piece of music.}
{Play|Put on|Queue|Start|I want to hear|Could you play|Let me hear|Can you play} {the track |the tune |the piece |}$1 by $2{.|, please.|?|}
{Play|Put on|Queue|Could you play|Can you put on} "$1" {by|from|of} $2{.|, please.|?|}
{Something by $2|From $2}{, play|: play|, namely} {"$1"|$1}{.|, please.|}
$2 {made|sings|wrote} "$1"{, play it|, I want to hear that|, put it on}{.|}

{play|watch|start|show}_{movie|film|video|series}({title|name|movie|what}: title)
{Play a film.|Show a movie.}
{Play|Watch|Show|Start|Put on} {the film|the movie|the video} $1{.|, please.|}
{Play|Watch|Show|Start} "$1"{.|, please.|}
{I want to|Let us|I'd like to} {watch|see} {$1|the film $1|"$1"}{.|}

{find|search|get|lookup}_{book|novel|paper}({title|name}: title, {author|writer|by}: full_name)
{Find a book.|Look for a book by its author.}
{Find|Get|Search|Look for|I need} {the book|the novel|the paper} $1 {by|from|of} $2{.|, please.|}
{Do you have|Is there} "$1" {by|from} $2?
{I am looking for|I want to read} {"$1"|$1} {by|from} $2{.|}

{order|buy|get}_{food|meal|pizza|dish}({dish|what|item|meal}: thing, {quantity|count|how_many|number}: small, {address|to|where}?: street)
{Order food.|Order a meal.}
{Order|Get|Bring|I want|I would like} $2 {times |x |}$1{ to $3|}{.|, please.|}
{Order|Get me|I'd like} $1, {quantity $2|$2 pieces|$2 times}{, to $3|}{.|}
$2 $1{ to $3|}{, please.|.}

{add|put}_{to_cart|item|product|to_basket}({item|product|name|what}: thing, {quantity|count|amount|n}: small)
{Add something to the shopping cart.|Put a product into the basket.}
{Add|Put} $2 {of |}{the |}$1 {to|into} {the|my} {cart|basket}{.|, please.|}
{I want|I'd like|I need} $2 {of the |}$1{.|, please.}
{Put|Add} $1 {to|into} {the|my} {cart|basket}, {$2 of them|$2 times|quantity $2}{.|}

{add|create|remember}_{todo|task|item}({task|text|title|what}: say, {due|deadline|date|until}?: date)
{Add a task to the list.|Remember something to do.}
{Add|Put|Write} "$1" {to|on} my {list|tasks|todos}{ until $2|, due $2|}{.|}
{New task|Todo|Task}: "$1"{, due $2| until $2|}
{I have to|I must not forget}: "$1"{, until $2|}

{pay|settle}_{bill|invoice|debt}({number|invoice_id|reference|bill}: code, {amount|sum|total}?: small)
{Pay a bill.|Settle an invoice.}
{Pay|Settle|Please pay} {the |my |}{bill|invoice} {number |}$1{, it is $2| with $2|, amount $2|}{.|, please.|}
{The|My} {bill|invoice} $1 {must be paid|is due}{, $2|}{.|}

{send|transfer|wire}_{money|funds|payment}({amount|sum|how_much}: small, {to|recipient|name|receiver}: full_name)
{Send money to somebody.|Transfer an amount.}
{Send|Transfer|Pay|Wire|Give} $1 {dollars|euros|pounds} to $2{.|, please.|}
{Send|Pay|Give} $2 $1 {dollars|euros|pounds}{.|, please.|}
{I owe|I want to send} $2 $1 {dollars|euros}{, please send it|}{.|}

{return|refund|exchange|reorder}_{purchase|item|product}({purchase_id|order|number|item_id}: code, {reason|why|because}?: thing)
{Return something bought.|Send a purchase back.}
{Return|Refund|Send back|Exchange} {my |the |}{purchase|item|product} {number |}$1{ because of the $2|, reason $2|}{.|, please.|}
{I want to|I'd like to|I have to} {return|send back|exchange} $1{ because of the $2|}{.|}

{get|check|show}_{status|state|progress}({id|job|number|ticket}: code)
{Tell the status of a job.|How far something is.}
{What is|Tell me|Show me|Check} the {status|state|progress} of {|job |number |ticket }$1{?|.|}
{How far is|What about|Is} {job |number |}$1{| done| ready}?
{Status|State} of $1{?|.|, please.}

{get|check|find}_{balance|account|points}({account|account_id|iban|number}: code)
{Tell the balance of an account.|How much is on an account.}
{What is|Show|Tell me|Check} the balance {of|on} {account |}$1{?|.|}
{How much is|How much money is|What is} {on|in} {account |}$1?

{register|create|add}_{user|member|account|customer}({name|full_name|user}: full_name, {email|mail|address}: email, {role|type|plan}?: admin/guest/editor)
{Create a user.|Register somebody.}
{Create|Add|Register|Make} {a user|an account|a member} for $1{ with|, email|, mail} $2{ as $3|, role $3|}{.|}
{Register|Sign up|Add} $1 with {the |}{email|mail|address} $2{ as $3|}{.|, please.|}
$1 {needs|wants|should get} {an account|a login}, {the mail is|his email is|her email is|email} $2{.|}

{find|get|lookup|show}_{phone_number|person|employee|address_of}({name|person|who}: full_name)
{Look up a person.|Find somebody.}
{What is|Find|Look up|I need|Tell me|Give me} the {phone number|number|address} of $1{?|.|}
{Where does|Who is|Where is|How can I reach} $1{| live| work}?
{Find|Look up|Search} $1{.|, please.|}

{upload|share|publish|attach}_{file|document|photo}({file|path|name|what}: file, {to|folder|with|where}?: thing)
{Share a file.|Upload a file to a folder.}
{Upload|Share|Publish|Attach} {the file |the document |}$1{ to {the |}$2| to the folder $2|}{.|, please.|}
{I want to|Can you|Please} {share|upload|publish} {the file |}$1{ to $2|}{.|?|}

{move|rename|relocate}_{document|path|item}({source|from|old|path}: file, {target|to|new|destination}: file)
{Move a document.|Give a document another name.}
{Move|Rename|Relocate} {the document |the file |}$1 to $2{.|, please.|}
{Put|Bring} $1 {to|into|under} $2{.|, please.|}
{I want|I need} $1 {at|under|as} $2{.|}

{open|show|edit|print}_{document|page|note}({path|name|file|which}: file)
{Open a document.|Show a page.}
{Open|Show|Edit|Print|Display|Bring up} {the document |the page |the note |the file |}$1{.|, please.|}
{I want to|Let me} {see|edit|read} {the document |the note |}$1{.|}

{create|make|new}_{folder|directory}({name|title|folder|path}: thing)
{Create a folder.|Make something new with a name.}
{Create|Make|Add|Open|Start} a {|new }{folder|directory} {called|named|with the name} $1{.|, please.|}
{New|Another} {folder|directory}: $1
{I need|I want} a {folder|directory} {called|named} $1{.|}

{run|execute|start}_{command|script|program}({command|script|cmd|line}: file)
{Run a command.|Start a script.}
{Run|Execute|Start|Launch} {the script |the program |the command |}$1{.|, please.|}
{Can you|Please} {run|start|execute} $1{?|.|}

{restart|reboot|bounce}_{service|server|container|machine}({name|service|host|server}: thing, {force|now|hard}?: flag)
{Restart a service.|Stop a service and start it again.}
{Restart|Reboot} the {service|server|container|machine} $1{, force $2|}{.|, please.|}
{The|Our} {service|server} $1 {hangs|is down|must be restarted}{.|, restart it.}

{report|file|create|open}_{bug|issue|problem|incident}({summary|title|what|text}: say, {severity|priority|level}: low/medium/high)
{Report a problem.|Open an issue.}
{Report|File|Open|Create} {a bug|an issue|a problem} {called|titled|with the summary} "$1"{ with|, and} {severity|priority|level} $2{.|, please.|}
{There is|We have|I found} a $2 {problem|bug|issue}: "$1"
{Report|File|Open} {a bug|an issue}: "$1", {severity|priority|level} $2{.|}
{Report|File} {a|one more} $2 {severity|priority} {bug|issue}: "$1"

{assign|give|hand}_{task|ticket|job}({task|ticket|job|id}: code, {to|person|assignee|who}: person)
{Assign a task to somebody.|Give a job to a person.}
{Assign|Give|Hand} {the |}{task|ticket|job} $1 to $2{.|, please.|}
{$2 should do|$2 takes|Let $2 do} {task |ticket |job |}$1{.|}

{get|show|list|find}_{events|concerts|shows}({city|place|location|where}: city, {date|day|when}?: date, {genre|kind|type|style}?: thing)
{Events in a city.|What is on in a place.}
{What is on|What happens|What can I do|Anything going on} in $1{ on $2|}?
{Show|List|Find|Are there} {events|concerts|shows} in $1{ on $2|}{.|?|}
{Find|Show|Are there} {a |some |}$3 {events|concerts|shows} in $1{ on $2|}{.|?|}

{find|search|get}_{shop|place|store}({kind|type|what|category}: thing, {near|city|location|in}: city)
{Find a shop of a kind.|Find a place nearby.}
{Find|Search|Show me|Look for|Get|Is there} {a |the nearest |a good |}$1 {shop|place|store} {in|near} $2{.|?|}
{Where is|Where can I find|Do you know} {a |the nearest |}$1 {shop|place|store} {in|near} $2?
{In|Near} $2 I {need|want|look for} {a |}$1 {shop|place|store}{.|}

{find|search|get|suggest}_{recipe|drink|dish}({ingredient|with|main|using}: thing, {cuisine|style|kitchen}?: nation)
{Find a recipe.|Suggest what to cook.}
{Find|Search|Give me|Show me|Suggest} {a recipe|something to cook|a dish} with $1{.|, please.|}
{Find|Search|Give me|Suggest} {a |an |some |}$2 {recipe|dish} with $1{.|, please.|}
{What can I cook|What can I make|What do I make} {with|from|out of} $1?

{convert|change}_{units|length|weight|temperature}({value|amount|number|x}: small, {from|from_unit|source}: km/kg/inch/gallon, {to|to_unit|target}: miles/pounds/cm/liters)
{Convert a measure.|Change units.}
{Convert|Change|Turn} $1 $2 {to|into} $3{.|, please.|}
{How many|How much} $3 {are|is} $1 $2?
{What is|What are} $1 $2 in $3?

{calculate|compute}_{quotient|difference|result}({a|x|first|left}: small, {b|y|second|right}: small)
{Calculate with two numbers.|Do arithmetic.}
{Divide|Calculate|Compute|What is|How much is} $1 {by|over|divided by|minus|to the power of} $2{?|.|}
{I need|Give me} $1 {minus|over|divided by} $2{.|}

{get|find|show}_{exchange_rate|price|rate}({currency|from|base}: EUR/USD/GBP/JPY, {target|to|in}: CHF/SEK/INR/CAD)
{Tell an exchange rate.|The rate between currencies.}
{What is|Tell me|Show|Get} the {rate|exchange rate|price} of $1 in $2{?|.|}
{How much is|How many} $2 {is|for} {one|a|1} $1?
{$1 to $2|$1 in $2}{?|, please.}

{translate|say}_{word|phrase|sentence}({word|phrase|text|what}: thing, {to|language|into|target}: Dutch/Polish/Greek/Korean)
{Translate a word.|Say something in another language.}
{Translate|Put|Turn} {"$1"|the word $1} {to|into} $2{.|, please.|}
{What is|How do I say|What does one say for} {"$1"|$1} in $2?
{Give me|I need} the $2 {word|translation} {for|of} {"$1"|$1}{.|}

{get|read|show}_{news|headlines|articles}({topic|about|subject|category}: thing, {limit|count|number|max}?: small)
{Get the news.|Show headlines about a topic.}
{What is new|Any news|What happened|Tell me the news} {about|on|with} {the |}$1?
{Show|Get|Give me|Read me} {$2 |the |}{headlines|articles|news} {about|on} {the |}$1{.|, please.|}

{get|check|show}_{conditions|forecast|outlook}({city|place|location|where}: city, {date|day|when}?: date)
{Conditions of a place on a day.|Something about a place's nature.}
{What is|How is|Tell me|Show me|Check} the {air|forecast|outlook} {in|for|at} $1{ on $2|}{?|.|}
{Forecast|Conditions|Outlook} {in|for} $1{ on $2|}{?|.|, please.|}

{wake|remind|alert|notify}_{me|user}({time|at|when}: time, {about|text|reason|what}?: thing)
{Remind the user at a time.|Wake the user.}
{Remind me|Alert me|Notify me} {at $1 about the $2|at $1 of the $2|about the $2 at $1|at $1}{.|, please.|}
{Wake me|Get me up} {up |}at $1{.|, please.|}
{At $1|$1}: {remind me of the $2|remind me about the $2|wake me up}{.|}

{measure|read|get}_{sensor|climate|gauge}({room|sensor|where|location}: room, {unit|units|scale}?: celsius/fahrenheit)
{Read a sensor.|Measure something in a room.}
{How warm|How cold|How humid} is {it in |}the $1{ in $2|}?
{What is|Tell me|Read|Measure} the {temperature|humidity|pressure} {in|of} the $1{ in $2|}{?|.|}

{lock|close|shut}_{door|window|entrance}({door|which|name|room}: room)
{Close a door.|Lock something.}
{Lock|Close|Shut} the {door|window} {of the|in the|to the} $1{.|, please.|}
{Lock|Close|Shut} the $1 {door|window}{.|, please.|}
{Is|Make sure} the $1 {door|window} {is |}{locked|closed}{?|.}

{subscribe|join|sign_up}_{newsletter|channel|group|list}({email|address|who|user}: email, {list|name|to|channel}?: thing)
{Join a list.|Subscribe an address.}
{Subscribe|Add} $1 to the {newsletter|channel|group|list}{ $2| called $2|}{.|, please.|}
{Sign up|Enter} $1 for the {newsletter|channel|list}{ $2|}{.|}

{rate|review}_{movie|product|hotel|book}({name|title|what|item}: title, {stars|rating|score|points}: small)
{Rate something.|Give stars to something.}
{Rate|Review} {the film |the book |}$1 with $2 {stars|points}{.|, please.|}
{Give|Award} "$1" $2 {stars|points}{.|, please.|}
$2 {stars|points} for {the book |}$1{.|!|}

{log|record|track|save}_{workout|run|meal|weight|sleep}({activity|what|kind|type}: thing, {minutes|duration|amount|value}: small)
{Record an activity.|Write down what the user did.}
{Log|Record|Track|Save} $2 minutes of $1{.|, please.|}
{I did|I had} $2 minutes of $1{ today| this morning|}{.|, log it.}
{Log|Record} $1, $2 minutes{.|}

{create|generate|draw|make}_{image|picture|logo|photo}({prompt|description|of|what}: thing, {style|kind|look}?: sketch/photo/comic)
{Draw a picture.|Make an image.}
{Draw|Make|Create|Generate|Paint} {a picture|an image|a photo} of {a |the |}$1{ as $2| in the style $2|, style $2|}{.|, please.|}
{I want|I need|Show me} {a picture|an image} of {a |the |}$1{ as $2|}{.|}

{search|find|query}_{flights|trips|rooms|offers}({destination|to|where|city}: city, {date|on|day}: date, {people|passengers|guests|persons}: small)
{Search for trips.|Find offers for some people.}
{Find|Search|Show me|I need} {flights|trips|offers|something} to $1 on $2 for $3 {people|persons|guests}{.|, please.|}
{We are|For} $3 {people|persons}{ and|,} {we |}want to go to $1 on $2{.|}
{To|Fly to|A trip to} $1 for $3 {people|persons} on $2{.|, please.|}

{book|reserve|make}_{seats|tickets|place}({event|show|what|name}: title, {seats|count|people|how_many}: small, {time|at|start|when}: time)
{Reserve seats.|Book places for an event.}
{Book|Reserve|Get me|I want|I need} $2 {seats|tickets|places} for $1 at $3{.|, please.|}
{Book|Reserve|I'd like} {seats|tickets|places} for {"$1"|$1} at $3 for $2 people{.|, please.|}
{At $3|For $3} {we need|book|get us} $2 {seats|tickets} for $1{.|}

{find|search|suggest|recommend|get}_{cafe|bar|diner|bakery|hotel|gym|barber}({kind|style|type|kitchen|food|category}: origin, {city|town|place|where|near}: city)
{Suggest a place to eat in a town.|Find a place of a kind.}
{Find|Show me|Suggest|Recommend|Get me|Search|Look for|I want} {a|an|some|one good} $1 {cafe|bar|diner|bakery|place} {in|near|around} $2{.|, please.|?|}
{Is there|Do you know|Can you find|Could you recommend me} {a|an|any} $1 {cafe|bar|diner|place} {in|near} $2?
{Where can I {eat|get} $1 {food|dishes} in $2|Where in $2 can I {eat|get} $1 {food|dishes}}?
{Find|Suggest|Show} {a cafe|a place|a bar} in $2 {with $1 food|that is $1|with the kind $1|of the kind $1}{.|, please.|}

{reserve|book|hold}_{court|desk|spot|lane|booth|studio}({venue|club|place|where|at}: title, {people|persons|guests|players|party_size}: small, {time|when|start|hour}: time)
{Reserve a court.|Book a spot for some people.}
{Reserve|Book|Hold|Get me|I need|We want} {a court|a desk|a spot|a lane|a booth} {at|in} {the |}$1 for $2 {people|persons|players} at $3{.|, please.|}
{Reserve|Book|Please book} a {court|desk|spot|booth}: {at |}$1, $2 {people|persons|guests}, {at |}$3{.|}
{At|In} $1, {book|reserve|hold} a {spot|booth|lane} for $2 at $3{.|, please.|}
{We are $2|There are $2 of us} and want {a booth|a court|a spot} at $1 at $3{.|}

{remove|erase|drop|discard|wipe}_{path|document|entry|backup|image}({path|name|file|what|target}: file)
{Remove something for good.|Erase a document.}
{Remove|Erase|Throw away|Get rid of|Wipe|Discard|Drop} {the |}{file |document |}$1{.|, please.|!|}
{I want to|I'd like to|Please|Can you} {remove|erase|get rid of} {the |}{file |document |}$1{.|?|}
{I do not need|Nobody needs} {the file |}$1 {any more|now}, {remove it|erase it|away with it}{.|}

{open|create|file|submit|raise}_{case|request|complaint|defect}({title|subject|summary|topic}: say, {priority|urgency|level}: low/normal/high)
{Open a case for the support.|File a complaint.}
{Open|File|Create|Make|Start|Raise} a {case|request|complaint|defect} {with the title|titled|with title|called|about} "$1"{,| and|, and|, with} {priority|urgency|level} $2{.|, please.|}
{Please |Can you |}{open|file|raise|create} a {case|request|complaint}, title "$1", {priority|urgency} $2{.|?|}
{Open|File|Create} a $2 {priority|urgency} {case|request|complaint}: "$1"

{watch|follow|locate|trace}_{parcel|letter|cargo|delivery}({number|parcel_number|code|id}: code)
{Tell where a parcel is.|Locate a delivery by its number.}
{Where is|What about|What happened to|How far is} {my|the} {parcel|letter|delivery} {with number |number |with the number |}$1?
{Locate|Trace|Follow|Find|Watch} {my |the |}{parcel|letter|delivery} $1{.|, please.|}
{I wait for|I am waiting for} {parcel |letter |number |}$1{, where is it?|.}

{store|save|write_down|keep}_{person|address|friend|member}({name|person|full_name|who}: full_name, {email|mail|e_mail|address}: email)
{Keep a person's address.|Write down who somebody is.}
{Store|Save|Keep|Write down|Put} $1 {in|into|under} {my |the |}{contacts|addresses|friends}, {her|his|their|the} {email|mail|address} is $2{.|}
{Store|Save|Keep} {a person|a friend|somebody} {with name|called|named} $1 {and|with|, } {email|mail|address} $2{.|, please.|}
$1 {has|uses|got} the {mail|email|address} $2{, keep it|, write that down|, please save it}{.|}
"""


_SIGNATURE = re.compile(r"(\w+)\((.*)\)")


def common_tool(source: Source) -> ToolSpec:
    """One of the tools, under one of its names."""
    while True:
        signature, description, *asks = source.choice(_ENTRIES)
        match = _SIGNATURE.fullmatch(source.expand(signature))
        assert match, signature
        if not HELD_OUT & set(match[1].split("_")):
            break
    params = [_param(part) for part in match[2].split(", ")]
    for number, param in enumerate(params, 1):
        asks = [ask.replace(f"${number}", f"${param.name}") for ask in asks]
    # All of its names count as one verb and one noun: two of them in one dialogue could not be told apart.
    verb, noun = signature.split("(")[0], "common"
    return ToolSpec(
        styled(source, *match[1].split("_")), verb, noun, tuple(params), source.expand(description), tuple(asks)
    )


def _param(text: str) -> Param:
    name, kind = text.split(": ")
    required = not name.endswith("?")
    options = tuple(kind.split("/")) if "/" in kind else ()
    return Param(name.rstrip("?"), "enum" if options else kind, options, required)


_ENTRIES = [paragraph.split("\n") for paragraph in _TOOLS.strip().split("\n\n")]
