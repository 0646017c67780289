"""The gateway's process: OpenAI's and Anthropic's interfaces over HTTP. It decides nothing; the engine answers."""
