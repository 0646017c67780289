"""``rollouts``: what the model writes, from the trend over steps down to one group; to read, or to take away."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ... import output
from ...words.format import line, score
from ..choosing import add_policy, add_task, policy_of
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from marlaas.engine.store import GroupSummary, StepSummary

    from ...reading.home_reader import HomeReader

PROMPT, REPLIES = 30, 60
"""Cells of a group's prompt and of its replies in a table."""


def register(verbs: Verbs) -> None:
    """Add the verb."""
    verb = add_verb(
        verbs,
        "rollouts",
        run,
        "show what the model writes: the steps of a task, the groups of a step, the conversations of a group",
        epilog="With --json: what is shown, as one document. With --jsonl or --out: all conversations of the task, the"
        " step or the group, one record per line; --out FILE.txt writes them as plain text.",
    )
    add_task(verb)
    add_policy(verb)
    verb.add_argument("--step", type=_number, metavar="N", help="the groups of this step")
    verb.add_argument("--group", type=_number, metavar="G", help="the conversations of this group, by its number")
    verb.add_argument("--eval", action="store_true", help="the held-out evaluation at a step, instead of the step")
    verb.add_argument(
        "--finding", metavar="NAME", help="the conversations that show what goes wrong, as `show` names it"
    )
    verb.add_argument("--failures", action="store_true", help="only conversations that failed")
    verb.add_argument("--search", metavar="TEXT", help="only conversations in which somebody says this")
    form = verb.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON on standard output")
    form.add_argument("--jsonl", action="store_true", help="print all conversations, one record per line")
    form.add_argument("--out", type=Path, metavar="FILE", help="write all conversations into a new file")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of a step or of a group")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Print, or write a file and say where it is."""
    from ...reading.opening import find_task, reading
    from ...rollouts import exporting

    home = home_of(args)
    with reading(home) as reader:
        task = find_task(reader, args.task)
        policy_of(args, task)
        args.task = task.id  # a number from here on
        assert reader is not None
        if args.jsonl:
            exporting.write(exporting.read(reader, _in_order(reader, args)), sys.stdout)
        elif args.out is None:
            _show(reader, args)
    if args.out is not None:
        written = exporting.export(home, lambda reader: _in_order(reader, args), args.out)
        output.talk(f"{written} conversation{'' if written == 1 else 's'} written.")
        output.result(str(args.out))
    return output.OK


def _show(reader: HomeReader, args: argparse.Namespace) -> None:

    from ...rollouts import exporting, exporting as records
    from ...words.terms import with_new_names

    if args.group is not None or args.finding or args.search or (args.failures and args.step is not None):
        ids = _ids(reader, args)
        if args.json:
            output.result_json([records.record(one) for one in exporting.read(reader, ids)])
        else:
            print(
                "\n".join(records.episode_text(one, output.is_plain()) for one in exporting.episodes(reader, ids)),
                end="",
            )
    elif args.step is not None:
        ids = reader.group_ids(args.task, _split(args), args.step, policy=args.policy)
        found = reader.group_rows(ids)
        groups = [found[key] for key in ids if key in found]
        if args.json:
            output.result_json([{**asdict(group), "staleness": group.staleness} for group in groups])
        else:
            _print_groups(args, groups)
    else:
        steps = reader.rollout_steps(args.task, policy=args.policy)
        steps = [step for step in steps if step.split == "eval" or not args.eval]
        if args.json:
            output.result_json([with_new_names(asdict(step)) for step in steps])
        else:
            _print_steps(args, steps)


def _in_order(reader: HomeReader, args: argparse.Namespace) -> Sequence[int]:
    """The conversations in the order in which they are written: oldest first; of one group episode by episode."""
    found = _ids(reader, args)
    return found if args.group is not None else sorted(found)


def _ids(reader: HomeReader, args: argparse.Namespace) -> array[int]:
    """Conversations that the arguments mean. Raises ``ConfigError`` where there is no such group."""
    from array import array

    from ...rollouts.browsing import search

    found = _in_scope(reader, args)
    if not args.search:
        return found
    return array("q", (hit for progress in search(reader, found, args.search) for hit in progress.hits))


def _in_scope(reader: HomeReader, args: argparse.Namespace) -> array[int]:
    from array import array

    from marlaas.engine.errors import ConfigError

    split = _split(args)
    if args.finding is not None:
        return array("q", _of_finding(reader, args))
    if args.group is not None:
        groups = reader.group_ids_numbered(args.task, split, args.group, args.step, args.policy)[:1]
        found = [
            id for group in groups for id in reader.conversation_ids(args.task, group=group, failures=args.failures)
        ]
        if not groups:
            hint = f"`marlaas rollouts {args.task} --step N` shows the groups of a step."
            raise ConfigError(f"Task {args.task} has no group {args.group}{_where(args)}.", hint)
        return array("q", found)
    if args.step is None and not args.eval:
        return reader.conversation_ids(args.task, failures=args.failures, policy=args.policy)
    made = [step.step for step in reader.rollout_steps(args.task, policy=args.policy)]
    steps = [args.step] if args.step is not None else made
    everything = (
        reader.conversation_ids(args.task, split, step, failures=args.failures, policy=args.policy)
        for step in dict.fromkeys(steps)
    )
    return array("q", (id for ids in everything for id in ids))


def _of_finding(reader: HomeReader, args: argparse.Namespace) -> Sequence[int]:
    """The conversations that show a finding. Raises ``ConfigError`` where the task has none of that name."""
    from marlaas.engine.errors import ConfigError

    task = reader.task(args.task)
    findings = [one for one in (task.findings if task else ()) if args.policy in (None, one.policy)]
    for finding in findings:
        if finding.code == args.finding:
            return finding.rollouts
    known = ", ".join(dict.fromkeys(line(one.code, 40) for one in findings))
    hint = f"It has {known}." if known else "Nothing was found to go wrong in its learning."
    raise ConfigError(f"Task {args.task} has no finding {args.finding!r}.", hint)


def _split(args: argparse.Namespace) -> str:
    return "eval" if args.eval else "train"


def _where(args: argparse.Namespace) -> str:
    kind = " of an evaluation" if args.eval else ""
    return f"{kind} at step {args.step}" if args.step is not None else kind


def _print_steps(args: argparse.Namespace, steps: list[StepSummary]) -> None:
    if not steps:
        output.talk("There are no episodes yet.")
        return
    rows = [
        (
            "waiting" if step.step is None else str(step.step),
            "held-out" if step.split == "eval" else "training",
            score(step.reward),
            str(step.groups),
            str(step.failures or "-"),
        )
        for step in steps
    ]
    output.result_table(
        ("STEP", "KIND", "REWARD", "GROUPS", "FAILED"), rows, right=("STEP", "REWARD", "GROUPS", "FAILED")
    )
    output.talk(f"`marlaas rollouts {args.task} --step N` shows the groups of one.")


def _print_groups(args: argparse.Namespace, groups: list[GroupSummary]) -> None:
    from ...rollouts.answers import Prompts, age, answers, answers_within, marks, numbers

    if not groups:
        output.talk(f"Task {args.task} has no groups{_where(args)}.")
        return
    prompts = Prompts()
    prompts.see(group.prompt for group in groups)
    rows = [
        (
            str(group.number),
            prompts.within(group.prompt, PROMPT),
            "".join(sign for sign, _ in marks(group.members)),
            numbers(group),
            "".join(text for text, _ in answers_within(answers(group.members), REPLIES, ", ")) or "-",
            age(group) or "-",
            str(group.instance),
            line(group.environment_version, 16),
        )
        for group in groups
    ]
    output.result_table(
        ("GROUP", "PROMPT", "MEMBERS", "REWARD", "REPLIES", "STALENESS", "INSTANCE", "ENVIRONMENT"),
        rows,
        right=("GROUP", "INSTANCE", "REWARD"),
    )
    more = "--eval " if args.eval else ""
    output.talk(f"`marlaas rollouts {args.task} {more}--step {args.step} --group G` shows what was said in one.")
