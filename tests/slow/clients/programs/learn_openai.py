"""The ``openai`` SDK: four questions, and as reward the share of characters with odd numbers in the answers.

python learn_openai.py
"""

from pathlib import Path

from openai import OpenAI

QUESTIONS = ("12+34=", "say a word", "what is it?", "56+21=")
client = OpenAI()
share = 0.0
for question in QUESTIONS:
    reply = client.chat.completions.create(model="any", messages=[{"role": "user", "content": question}])
    text = reply.choices[0].message.content or ""
    share += sum(ord(character) % 2 for character in text) / max(1, len(text)) / len(QUESTIONS)
Path("reward.txt").write_text(str(share))
