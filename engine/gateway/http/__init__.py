"""The gateway's process: OpenAI's and Anthropic's interfaces over HTTP. The engine answers."""
