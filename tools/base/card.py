"""Writes the model card, README.md, from `training.json` and `evaluation.json`, so that no number in it is typed."""

import json
from pathlib import Path
from random import Random
from string import Template

from tools.base.evaluate import Scores
from tools.base.problem import script
from tools.base.skills.mixture import OFTEN, SELDOM, SKILLS, Skill

TEMPLATE = Path(__file__).with_name("card.md")


def row(skill: Skill, scores: Scores) -> str:
    """A line of the table of skills, with a right conversation as the example."""
    turns = script(skill.draw(Random(1)), right=True)
    example = " → ".join(f"`{turn['content']}`" for turn in turns)
    cells = [f"{scores[how][grade]:.2f}" for how in ("greedy", "sampled") for grade in ("strict", "lenient")]
    return f"| {' | '.join([skill.name, example, *cells])} |"


def write(folder: Path) -> None:
    """Writes the card from what the folder holds."""
    config, training, evaluation = (
        json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("config", "training", "evaluation")
    )
    text = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        training,
        parameters=f"{training['parameters'] / 1e6:.2f} million",
        tokens=f"{training['tokens'] / 1e6:.1f}",
        minutes=round(training["seconds"] / 60),
        speed=f"{training['tokens'] / training['seconds']:,.0f}",
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv=config["num_key_value_heads"],
        head=config["head_dim"],
        vocabulary=config["vocab_size"],
        context=config["max_position_embeddings"],
        megabytes=f"{(folder / 'model.safetensors').stat().st_size / 1e6:.1f}",
        prompts=evaluation["prompts"],
        skills="\n".join(row(skill, evaluation["skills"][skill.name]) for skill in SKILLS),
        often=round(100 * OFTEN),
        seldom=round(100 * SELDOM),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
