"""The ``anthropic`` SDK: four questions, and as reward the share of characters with odd numbers in the answers.

python learn_anthropic.py
"""

from pathlib import Path

from anthropic import Anthropic

QUESTIONS = ("12+34=", "say a word", "what is it?", "56+21=")
client = Anthropic()
share = 0.0
for question in QUESTIONS:
    asked = [{"role": "user", "content": question}]
    reply = client.messages.create(model="any", max_tokens=8, messages=asked)
    text = "".join(part.text for part in reply.content if part.type == "text")
    share += sum(ord(character) % 2 for character in text) / max(1, len(text)) / len(QUESTIONS)
Path("reward.txt").write_text(str(share))
