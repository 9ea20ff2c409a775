"""The server: OpenAI's API over HTTP, on the engine."""
