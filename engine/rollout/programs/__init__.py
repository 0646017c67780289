"""Answers programs that speak OpenAI's or Anthropic's interfaces to the model of an episode, token for token."""
