"""What the base can do, skill by skill, on prompts kept out of training.

The score is greedy and sampled accuracy, strict and lenient, per skill. The model plays whole conversations against the
same referees that wrote the training data.
"""

from random import Random

import torch
from transformers import PreTrainedTokenizerBase

from tools.base.model import Network
from tools.base.problem import Message, Problem, Tool, Verdict, start
from tools.base.skills.mixture import SKILLS, Skill, draw
from tools.base.vocabulary import render

LONGEST = 96
"""Most tokens of a reply; a tool call has about 70."""

Scores = dict[str, dict[str, float]]
"""By way of decoding, then by way of grading."""


def replies(
    model: Network,
    tokenizer: PreTrainedTokenizerBase,
    dialogues: list[list[Message]],
    tools: list[Tool],
    sampled: bool,
) -> list[str]:
    """The model's next turn in each dialogue, without the end token; a cut-off turn is as it is."""
    texts = [render(tokenizer, d, tools, prompting=True) for d in dialogues]
    batch = tokenizer(texts, padding=True, padding_side="left", return_tensors="pt").to(model.device)
    with torch.no_grad():
        out = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=LONGEST,
            do_sample=sampled,
            temperature=1.0 if sampled else None,
            top_k=0 if sampled else None,
        )
    said: list[str] = tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return said


def play(model: Network, tokenizer: PreTrainedTokenizerBase, problems: list[Problem], sampled: bool) -> list[Verdict]:
    """Play all problems to their verdicts, side by side: they are of one skill, and so share their tools."""
    dialogues = [start(p) for p in problems]
    said: list[list[str]] = [[] for _ in problems]
    verdicts: dict[int, Verdict] = {}
    while live := [i for i in range(len(problems)) if i not in verdicts]:
        texts = replies(model, tokenizer, [dialogues[i] for i in live], problems[0].tools, sampled)
        for i, text in zip(live, texts, strict=True):
            said[i].append(text)
            dialogues[i].append({"role": "assistant", "content": text})
            answer = problems[i].judge(said[i])
            if isinstance(answer, Verdict):
                verdicts[i] = answer
            else:
                dialogues[i].append(answer)
    return [verdicts[i] for i in range(len(problems))]


def measure(model: Network, tokenizer: PreTrainedTokenizerBase, skill: Skill, prompts: int, seed: int = 0) -> Scores:
    """Scores of one skill on ``prompts`` held-out problems."""
    rng = Random(f"{seed}/{skill.name}")
    problems = [draw(skill, rng, evaluation=True) for _ in range(prompts)]
    torch.manual_seed(seed)
    scores: Scores = {}
    for name, sampled in (("greedy", False), ("sampled", True)):
        verdicts = play(model, tokenizer, problems, sampled)
        scores[name] = {
            "strict": sum(v.strict for v in verdicts) / prompts,
            "lenient": sum(v.lenient for v in verdicts) / prompts,
        }
    return scores


def evaluate(model: Network, tokenizer: PreTrainedTokenizerBase, prompts: int) -> dict[str, Scores]:
    """Scores of every skill; prints them as they come."""
    model.eval()
    result: dict[str, Scores] = {}
    for skill in SKILLS:
        result[skill.name] = measure(model, tokenizer, skill, prompts)
        print(f"{skill.name}: {result[skill.name]}", flush=True)
    return result
