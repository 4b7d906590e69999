"""The server behind `localchat.server`: HTTP exchanges, routes, and a request's way to the engine and back."""
