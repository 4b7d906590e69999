"""The HTTP server: connections, requests and responses, routes, API keys, CORS, streaming, metrics."""
