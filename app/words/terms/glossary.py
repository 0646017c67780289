"""The words for things that people meet: what is trained, on what, by whom, and where it lies."""

from __future__ import annotations

from .term import Term

_MARLAAS = "MARLaaS, arXiv 2605.08527"

TERMS = (
    # Who wants what.
    Term("home", "the folder with everything that belongs to one marlaas: queue, adapters, environments, settings"),
    Term("tenant", "a person or project; shares and quotas are counted by it", names=("user", "project")),
    Term(
        "weight",
        "how much of the machine a tenant gets beside others that want it",
        names=("tenant weight",),
        healthy="1 for each, unless somebody is to have more",
        otherwise="`marlaas tenants set NAME --weight W` changes it",
        source="docs/concepts/fairness.md",
    ),
    Term("task", "one run of a tenant: it trains policies, or measures versions", names=("job", "run")),
    Term(
        "priority",
        "the order of one tenant's tasks: the higher begins first; other tenants are not touched by it",
        names=("queue.priority",),
        healthy="0",
        source="docs/guides/tasks.md",
    ),
    Term(
        "sweep",
        "tasks from one file that differ in some values",
        names=("family", "grid"),
        source="docs/guides/tasks.md",
    ),
    Term(
        "blocked",
        "a task that needs something which is missing at the moment: an environment, room on the disk, its adapters",
        healthy="no task is",
        otherwise="its reason says what is missing; it goes on by itself once that is there",
    ),
    Term("incarnation", "the number of an engine of a home: each start has the next one"),
    Term(
        "yielding",
        "leaving cards and memory to other people for a time; tasks wait at their last commit",
        names=("yield", "give the machine back"),
        source="docs/operations/sharing.md",
    ),
    # What is trained.
    Term("base", "the model that all adapters stand on; it never changes", names=("base model",), source=_MARLAAS),
    Term(
        "adapter",
        "LoRA matrices on the base: all that training changes",
        names=("LoRA",),
        formula="W + (alpha ÷ rank) · B·A",
        source="LoRA, arXiv 2106.09685",
    ),
    Term(
        "rank", "the width of an adapter's matrices: how much it can learn, and how large it is", names=("lora rank",)
    ),
    Term(
        "targets",
        "the matrices that an adapter changes: all linear ones; of a mixture of experts those of attention alone",
        names=("target modules", "policy.targets"),
        source="LoRA Without Regret, 2025",
    ),
    Term("policy", "a named line of adapters in a task", names=("learner",)),
    Term("version", "a policy's immutable state after so many steps", names=("checkpoint", "adapter version")),
    Term("published", "a version that samplers hold and answer with", names=("served", "published version")),
    Term("frozen policy", "one that plays without being trained", names=("frozen",)),
    Term(
        "opponent pool",
        "earlier versions of a policy that play against it",
        names=("pool", "self-play"),
        source="docs/guides/policies.md",
    ),
    Term("agent", "a role in an environment, in which a policy acts", names=("agent map", "role")),
    Term("match", "which policy acts as which agent in one play, and with which version"),
    Term(
        "retention",
        "which versions and trajectories stay on the disk",
        names=("pruned", "keep"),
        source="docs/operations/durability.md",
    ),
    # What it is trained on.
    Term(
        "environment",
        "Python code that asks the model and pays a reward",
        names=("env", "plugin"),
        source="docs/guides/environments.md",
    ),
    Term("grader", "the part of an environment that pays the reward", names=("reward function", "scorer", "verifier")),
    Term("instance", "what an episode is about: a split and a number"),
    Term("prompt", "the first thing that an episode asks the model"),
    Term(
        "split",
        "whose instances are played: train, eval (held out, chooses the best version) or test (measured at the end)",
        names=("train", "test"),
    ),
    Term("mixture", "several environments of one task, each a component with its share", names=("component",)),
    Term(
        "curriculum",
        'drawing rows less that are always solved, or never: `sampling = "difficulty"`',
        names=("difficulty", "sampling difficulty"),
        source="docs/guides/data.md",
    ),
    # How it is trained.
    Term("episode", "one run of the environment", names=("rollout sample", "sample")),
    Term("turn", "one ask and its reply", names=("ask", "reply")),
    Term("trajectory", "one agent's tokens in one episode", names=("transcript",)),
    Term(
        "group",
        "episodes of one instance, `group_size` of them, whose rewards are compared",
        names=("group size",),
        source="GRPO, arXiv 2402.03300",
    ),
    Term("member", "one of the episodes of a group"),
    Term(
        "redundant",
        "members that begin beyond `group_size`; the first ones with a reward count",
        source="RollArt, arXiv 2512.22560",
    ),
    Term("play", "the episodes of a group, as all policies of a task see them"),
    Term("rollout", "the stage that samples; the view of what the model wrote", names=("sampling", "rollouts")),
    Term("training", "the stage that makes steps; the seconds that it took", names=("training stage",)),
    Term(
        "final reward",
        "an agent's whole reward, given before its episode ends",
        source="docs/guides/environments.md",
    ),
    Term(
        "advantage",
        "a reward compared with its group: what a token is pushed by",
        formula="reward − group mean",
        source="Dr. GRPO, arXiv 2503.20783",
    ),
    Term(
        "return to go",
        "what an agent is paid after a turn's reply, the final reward included",
        names=("credit",),
        formula="Σ discountᵏ · payment k turns later",
        source="docs/guides/losses.md",
    ),
    Term("step", "one optimizer step of one policy; it makes a version", names=("optimizer step",)),
    Term("batch", "the groups that one step consumes: `groups_per_step` of them", names=("groups per step",)),
    Term(
        "truncation",
        "which tokens may be drawn (top-k, top-p, min-p): in evaluation and chat, never in training",
        names=("top_p", "top_k", "min_p"),
    ),
    Term("temperature", "how random a reply is: 0 takes the likeliest token, 1 draws as the model says"),
    Term("canary", "the check after each step that samplers serve what was trained", source="docs/concepts/canary.md"),
    Term("deterministic", "a task that gives the same bits each time, alone or beside others"),
    # How it is measured.
    Term("evaluation", "the episodes of one version on held-out prompts", source="docs/guides/evaluation.md"),
    Term(
        "series",
        "scores that compare: the same prompts, code, data and way of measuring",
        source="docs/guides/scores.md",
    ),
    Term("suite", "another environment on which a policy is measured", source="docs/guides/evaluation.md"),
    # What goes wrong while learning.
    Term(
        "finding",
        "a sign that the learning of a policy goes wrong, with its figures, rollouts and what to do",
        healthy="there is none",
        otherwise="press f in the view of the task; [watch] in a task file lets findings pause it",
        source="docs/guides/wrong.md",
    ),
    Term(
        "reward hacking",
        "the policy earns reward without doing what was meant",
        names=("cheating", "specification gaming", "overfitting"),
        healthy="held-out rises with the reward",
        otherwise="read the best-paid rollouts, then mend the grader",
    ),
    Term(
        "entropy collapse",
        "the policy says the same on every try, so that groups have nothing to compare",
        names=("mode collapse", "collapse"),
        healthy="entropy falls slowly",
        otherwise="a smaller learning rate, or `entropy` under [train]",
        source="DAPO, arXiv 2503.14476, section 3.1",
    ),
    # The machine.
    Term("engine", "the process that runs the queue; closing the application does not stop it"),
    Term("draining", "ending the engine between two steps, so that nothing under way is lost", names=("drain",)),
    Term("worker", "a process that computes: rollout, training, environment"),
    Term("sampler", "the program that writes tokens in a rollout worker: torch, llama.cpp or vLLM"),
    Term("trainer", "the program that makes steps in a training worker", names=("training worker",)),
    Term("slot", "one of the sampler's sequences; an episode takes one for each turn", names=("sequence", "sequences")),
    Term("backlog", "the work that waits at a sampler and is under way there, in its own seconds"),
    Term("adapter cache", "the trainer's policies in memory; others are paged out", names=("paging",)),
    Term("placement", "which worker computes on which device, and why", names=("placement plan", "device")),
    Term(
        "quota", "a bound on a tenant's tasks at the same time, or on its tokens a day", source="docs/guides/queue.md"
    ),
    Term("GGUF", "the file format of llama.cpp, for bases and adapters"),
    Term("PEFT", "Hugging Face's library and folder format for adapters", source="https://huggingface.co/docs/peft"),
)
