"""What prepares a request: from the arguments of a method to the body.

options.py                      the options of all methods
arguments.py                    BaseRequest: the checked options of one call
completion.py                   CompletionRequest: those of a method that generates text, with its prompt
prompts.py, media.py            messages; images and sounds in them
models.py                       the models of the server, and the default one
response.py                     the Response of `client.request`
"""
