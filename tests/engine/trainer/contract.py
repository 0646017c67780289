"""What every trainer keeps, whatever it computes with: subclass ``TrainerContract`` and give it ``new_trainer``."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.adapters.statefile import begin, checksum, read_state
from marlaas.engine.trainer.protocol import GroupStats, Job, PolicyConfig, Probe, StepResult, Trainer, TrainGroup

from ...seldom import seldom
from .oracle import Oracle
from .samples import group, sequence

NewTrainer = Callable[..., Trainer]
"""Given how many policies it holds at a time, ``slots``; all of them unless it is said."""
CONFIG = PolicyConfig(rank=4, alpha=8.0, learning_rate=1e-2, denominator=40.0)
TIGHT = 2e-5


class StepContract:
    """Of what a trainer keeps, that which depends most on how it computes: its steps, alone and beside others."""

    tight = TIGHT
    """How far a log-probability may be from the plain one."""
    relative = 1e-4
    """And a sum, as a share."""
    summed = 1e-7
    """And a moment after one step."""
    moved = 1e-4
    """And a weight after two steps: a hundredth of the learning rate."""

    @pytest.fixture
    def new_trainer(self, base: str) -> NewTrainer:
        """Makes a trainer over the base in the folder ``base``; each call a new one."""
        raise NotImplementedError

    @pytest.fixture
    def trainer(self, new_trainer: NewTrainer) -> Trainer:
        return new_trainer()

    @pytest.mark.parametrize(
        "config",
        [
            CONFIG,
            replace(CONFIG, clip_norm=1e-3, weight_decay=0.1, rank=3),
            replace(CONFIG, clip_norm=0.0, temperature=0.7, kl=0.5),
            replace(CONFIG, clip_norm=0.0, temperature=0.7, entropy=0.5),
        ],
    )
    async def test_steps_are_those_of_plain_peft_and_adamw(
        self, trainer: Trainer, base: str, tmp_path: Path, config: PolicyConfig
    ) -> None:
        await trainer.open("a", config, str(tmp_path / "0"), resume=False)
        oracle = Oracle(base, tmp_path / "0")
        batches = [(group(1), group(2)), (group(3),)]
        for number, (groups, norm) in enumerate(zip(batches, oracle.steps(batches, config), strict=True), start=1):
            result = await train(trainer, "a", groups, tmp_path / f"{number}")
            assert result.step == number
            assert result.grad_norm == pytest.approx(norm, rel=self.relative)
        assert oracle.distance(read_state(tmp_path / "2")) < self.moved

    async def test_a_step_beside_other_policies_is_the_step_alone(
        self, new_trainer: NewTrainer, tmp_path: Path
    ) -> None:
        policies = {
            "a": CONFIG,
            "same rank": replace(CONFIG, seed=1),
            "other rank": replace(CONFIG, rank=7, kl=0.3, entropy=0.2, learning_rate=0.5),
            "other scale": replace(CONFIG, alpha=64.0, temperature=2.0),
        }
        alone, norms = new_trainer(), []
        for offset, (policy, config) in enumerate(policies.items()):
            await alone.open(policy, config, str(tmp_path / "0"), resume=False)
            for number in range(1, 4):
                groups = (group(10 * offset + number), group(100 + 10 * offset + number))
                result = await train(alone, policy, groups, tmp_path / f"{policy} alone")
            norms.append(result.grad_norm)
            await alone.close(policy)

        crowd, crowded = new_trainer(), []
        for policy, config in policies.items():
            await crowd.open(policy, config, str(tmp_path / "0"), resume=False)
        for number in range(1, 4):
            for half in (0, 100):
                for offset, policy in enumerate(policies):
                    await crowd.accumulate(policy, (group(half + 10 * offset + number),))
                    await crowd.score(policy, group(4).sequences[0].tokens, 2, 1.0)
            crowded = [(await crowd.step(policy, str(tmp_path / f"{policy} beside"))).grad_norm for policy in policies]
        assert crowded == norms
        for policy in policies:
            assert (tmp_path / f"{policy} beside").read_bytes() == (tmp_path / f"{policy} alone").read_bytes(), policy

    async def test_a_resumed_policy_goes_on_to_the_last_bit(self, new_trainer: NewTrainer, tmp_path: Path) -> None:
        through = new_trainer()
        await through.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        committed = await train(through, "a", (group(1),), tmp_path / "1")
        await train(through, "a", (group(2),), tmp_path / "2")
        final = await train(through, "a", (group(3),), tmp_path / "3")

        again = new_trainer()
        resumed = await again.open("a", CONFIG, str(tmp_path / "1"), resume=True)
        assert (resumed.step, resumed.checksum, resumed.size) == (1, committed.checksum, committed.size)
        await train(again, "a", (group(2),), tmp_path / "2 again")
        repeated = await train(again, "a", (group(3),), tmp_path / "3 again")
        assert (repeated.step, repeated.checksum) == (3, final.checksum)
        assert (tmp_path / "3").read_bytes() == (tmp_path / "3 again").read_bytes()


class TrainerContract(StepContract):
    """All of it."""

    async def test_a_fresh_policy_is_version_0_and_changes_nothing_yet(
        self, trainer: Trainer, base: str, tmp_path: Path
    ) -> None:
        opened = await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        state = read_state(tmp_path / "0")
        assert (opened.step, state.header.step, opened.size) == (0, 0, (tmp_path / "0").stat().st_size)
        assert opened.checksum == checksum(state.adapter)
        assert not any(state.adapter[name].any() for name in state.adapter if name.endswith("lora_B"))
        tokens = group(1).sequences[0].tokens
        plain = Oracle(base, tmp_path / "0").logprobs(tokens, base=True)
        expected = plain[np.arange(len(tokens) - 1), tokens[1:]]
        assert np.allclose(await trainer.score("a", tokens, 1, 1.0), expected, atol=self.tight)

    async def test_the_seed_decides_the_first_weights(self, trainer: Trainer, tmp_path: Path) -> None:
        first = await trainer.open("a", CONFIG, str(tmp_path / "a"), resume=False)
        same = await trainer.open("b", CONFIG, str(tmp_path / "b"), resume=False)
        other = await trainer.open("c", replace(CONFIG, seed=1), str(tmp_path / "c"), resume=False)
        assert first.checksum == same.checksum != other.checksum

    async def test_tokens_may_have_advantages_of_their_own(self, trainer: Trainer, base: str, tmp_path: Path) -> None:
        """Those of their turns, in a group whose members share their prompt; the same everywhere is one for all."""
        plain, draw = group(1), np.random.default_rng(3)
        drawn = [draw.normal(size=len(s.tokens)).astype(np.float32) for s in plain.sequences]
        equal = [np.full(len(s.tokens), s.advantage, np.float32) for s in plain.sequences]
        varied, flat = (
            replace(plain, sequences=tuple(map(lambda s, own: replace(s, advantages=own), plain.sequences, found)))
            for found in (drawn, equal)
        )
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        oracle = Oracle(base, tmp_path / "0")
        (norm,) = oracle.steps([(varied,)], CONFIG)
        assert (await train(trainer, "a", (varied,), tmp_path / "1")).grad_norm == pytest.approx(
            norm, rel=self.relative
        )
        assert oracle.distance(read_state(tmp_path / "1")) < self.moved
        for name, some in (("plain", plain), ("flat", flat)):
            await trainer.open(name, CONFIG, str(tmp_path / "0"), resume=False)
            await train(trainer, name, (some,), tmp_path / name)
        assert (tmp_path / "plain").read_bytes() == (tmp_path / "flat").read_bytes()

    async def test_it_does_not_matter_in_how_many_calls_a_batch_comes(self, trainer: Trainer, tmp_path: Path) -> None:
        whole = TrainGroup(0, group(1).sequences + group(2).sequences)
        for policy, groups in (("many", (group(1), group(2))), ("one", (whole,))):
            await trainer.open(policy, CONFIG, str(tmp_path / policy), resume=False)
            await train(trainer, policy, groups, tmp_path / policy)
        many, one = (read_state(tmp_path / name).moment1 for name in ("many", "one"))
        assert all(np.allclose(many[name], one[name], atol=self.summed) for name in many)

    async def test_groups_of_one_call_count_as_in_calls_of_their_own(self, trainer: Trainer, tmp_path: Path) -> None:
        groups = (group(1), group(2), group(3))
        for policy in ("one", "many"):
            await trainer.open(policy, CONFIG, str(tmp_path / policy), resume=False)
        together = await trainer.accumulate("one", groups)
        apart = [await trainer.accumulate("many", (one,)) for one in groups]
        norms = [(await trainer.step(policy, str(tmp_path / policy))).grad_norm for policy in ("one", "many")]
        assert norms[0] == pytest.approx(norms[1], rel=self.relative)
        for name in ("tokens", "measured", "clipped", "loss", "entropy", "gap_sum", "kl"):
            sums = sum(getattr(stats, name) for stats in apart)
            assert getattr(together, name) == pytest.approx(sums, rel=self.relative), name
        assert together.gap_max == pytest.approx(max(stats.gap_max for stats in apart), rel=self.relative)

    async def test_a_step_in_the_call_of_its_last_groups_has_the_same_bits(
        self, trainer: Trainer, tmp_path: Path
    ) -> None:
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        first = await train(trainer, "a", (group(1), group(2)), tmp_path / "apart 1")
        second = await train(trainer, "a", (group(3),), tmp_path / "apart 2")
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        assert (await trainer.accumulate("a", (group(1),))).step is None
        stats = await trainer.accumulate("a", (group(2),), path=str(tmp_path / "joined 1"))
        last = await trainer.accumulate("a", (group(3),), path=str(tmp_path / "joined 2"))
        assert stats.measured > 0 and stats.step is not None and last.step is not None
        assert (stats.step.step, stats.step.grad_norm) == (1, first.grad_norm)
        assert (last.step.step, last.step.checksum) == (2, second.checksum)
        for number in "12":
            assert (tmp_path / f"joined {number}").read_bytes() == (tmp_path / f"apart {number}").read_bytes()

    async def test_a_call_without_groups_adds_nothing(self, trainer: Trainer, tmp_path: Path) -> None:
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        stats = await trainer.accumulate("a", ())
        assert (stats.tokens, stats.measured, stats.loss) == (0, 0, 0.0)

    async def test_opening_again_discards_an_unfinished_gradient(self, trainer: Trainer, tmp_path: Path) -> None:
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        expected = await train(trainer, "a", (group(1),), tmp_path / "1")
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=True)
        await trainer.accumulate("a", (group(2),))
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=True)
        assert (await train(trainer, "a", (group(1),), tmp_path / "1")).checksum == expected.checksum

    @pytest.mark.parametrize("temperature", [1.0, 0.6])
    async def test_scores_are_those_of_plain_peft(
        self, trainer: Trainer, base: str, tmp_path: Path, temperature: float
    ) -> None:
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        await train(trainer, "a", (group(1),), tmp_path / "1")
        oracle = Oracle(base, tmp_path / "1")
        for example in group(2).sequences:
            scores = await trainer.score("a", example.tokens, 3, temperature)
            logprobs = oracle.logprobs(example.tokens, temperature).detach().numpy()
            expected = logprobs[np.arange(2, len(example.tokens) - 1), example.tokens[3:]]
            assert scores.dtype == np.float32
            assert np.allclose(scores, expected, atol=self.tight)

    @pytest.mark.parametrize("terms", [0.0, 0.1])
    async def test_a_probe_rides_with_groups_and_teaches_nothing(
        self, trainer: Trainer, tmp_path: Path, terms: float
    ) -> None:
        """Under the weights that the groups are passed with; two epochs pass over the groups twice."""
        config = replace(CONFIG, epochs=2, temperature=0.6, kl=terms, entropy=terms)
        results: dict[str, list[StepResult]] = {"a": [], "b": []}
        wanted = tuple((example.tokens, start) for start, example in enumerate(group(2).sequences, start=1))
        for policy, made in results.items():
            await trainer.open(policy, config, str(tmp_path / policy), resume=False)
            for number in (1, 2):
                riding = Probe(wanted) if policy == "a" else None
                expected = [await trainer.score(policy, *one, 0.6) for one in wanted]
                stats = await trainer.accumulate(policy, (group(2 * number), group(2 * number + 1)), riding)
                assert len(stats.scores) == (len(wanted) if riding else 0)
                assert all(np.allclose(*pair, atol=self.tight) for pair in zip(stats.scores, expected, strict=False))
                assert set(stats.weights) <= {2 * number, 2 * number + 1}
                made.append(await trainer.step(policy, str(tmp_path / f"{policy}{number}")))
        for one, other in zip(*results.values(), strict=True):
            assert one.divisor == other.divisor and one.grad_norm == pytest.approx(other.grad_norm, rel=1e-4)
        with_probe = await trainer.score("a", *wanted[0], 0.6)
        assert np.allclose(with_probe, await trainer.score("b", *wanted[0], 0.6), atol=self.tight)

    async def test_a_probe_alone_is_answered_and_no_group_counts(self, trainer: Trainer, tmp_path: Path) -> None:
        """With the last bits of the gradient as they were."""
        sums: list[str] = []
        for policy, probes in (("a", True), ("b", False)):
            await trainer.open(policy, CONFIG, str(tmp_path / policy), resume=False)
            await trainer.accumulate(policy, (group(1),))
            if probes:
                tokens = group(2).sequences[0].tokens
                stats = await trainer.accumulate(policy, (), Probe(((tokens, 1), (tokens[:3], 3))))
                assert [len(one) for one in stats.scores] == [len(tokens) - 1, 0]
                assert np.allclose(stats.scores[0], await trainer.score(policy, tokens, 1, 1.0), atol=self.tight)
                assert not (stats.tokens or stats.measured or stats.loss or stats.gap_max or stats.weights)
            sums.append((await trainer.step(policy, str(tmp_path / f"{policy}1"))).checksum)
        assert sums[0] == sums[1]

    async def test_probes_of_several_policies_share_a_pass(self, trainer: Trainer, tmp_path: Path) -> None:
        tokens = [example.tokens for example in group(5).sequences]
        for number, policy in enumerate("abc"):
            await trainer.open(policy, replace(CONFIG, seed=number), str(tmp_path / policy), resume=False)
            await train(trainer, policy, (group(number),), tmp_path / f"{policy}1")
        jobs = tuple(Job(policy, (group(n),), Probe(((tokens[n], 1),))) for n, policy in enumerate("abc", start=1))
        found = await trainer.accumulate_together((*jobs[:2], replace(jobs[2], probe=None)))
        for n, (policy, stats) in enumerate(zip("ab", found, strict=False), start=1):
            assert isinstance(stats, GroupStats)
            assert np.allclose(stats.scores[0], await trainer.score(policy, tokens[n], 1, 1.0), atol=self.tight)
        assert isinstance(found[2], GroupStats) and found[2].scores == ()

    async def test_a_probe_that_cannot_be_scored_is_refused(self, trainer: Trainer, tmp_path: Path) -> None:
        await trainer.open("a", CONFIG, str(tmp_path / "a"), resume=False)
        tokens = group(1).sequences[0].tokens
        for start in (0, len(tokens) + 1):
            with pytest.raises(ValueError, match="Scoring can start at 1"):
                await trainer.accumulate("a", (group(1),), Probe(((tokens, start),)))
        assert (await train(trainer, "a", (group(1),), tmp_path / "a1")).step == 1

    async def test_what_is_rewarded_becomes_likely(self, trainer: Trainer, tmp_path: Path) -> None:
        config = replace(CONFIG, denominator=8.0)
        await trainer.open("a", config, str(tmp_path / "0"), resume=False)
        answers, right = range(8, 16), 11
        bandit = TrainGroup(0, tuple(sequence([1, 2, t], 2, (t == right) - 1 / 8, logprob=-np.log(8)) for t in answers))
        before = await trainer.score("a", np.array([1, 2, right], dtype=np.int32), 2, 1.0)
        for number in range(20):
            await train(trainer, "a", (bandit,), tmp_path / f"{number + 1}")
        after = await trainer.score("a", np.array([1, 2, right], dtype=np.int32), 2, 1.0)
        assert np.exp(before[0]) < 0.3 < 0.8 < np.exp(after[0])

    async def test_the_norm_is_reported_before_clipping(self, trainer: Trainer, tmp_path: Path) -> None:
        norms = {}
        for clip_norm in (0.0, 1e-3):
            config = replace(CONFIG, clip_norm=clip_norm)
            await trainer.open("a", config, str(tmp_path / "0"), resume=False)
            norms[clip_norm] = (await train(trainer, "a", (group(1),), tmp_path / "1")).grad_norm
            moments = np.concatenate([m.ravel() for m in read_state(tmp_path / "1").moment1.values()])
            kept = np.linalg.norm(moments) / (1 - config.betas[0])
            assert kept == pytest.approx(clip_norm or norms[0.0], rel=1e-4)
        assert norms[0.0] == norms[1e-3] > 1e-3

    async def test_statistics_are_sums_over_the_trained_tokens(
        self, trainer: Trainer, base: str, tmp_path: Path
    ) -> None:
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        oracle, some = Oracle(base, tmp_path / "0"), group(1)
        stats = await trainer.accumulate("a", (some,))
        entropy, gaps = 0.0, []
        for own in some.sequences:
            logprobs = oracle.logprobs(own.tokens).detach().numpy()  # (T-1, V)
            trained = np.flatnonzero(own.mask)
            entropy -= float((np.exp(logprobs) * logprobs)[trained - 1].sum())
            gaps += (logprobs[trained - 1, own.tokens[trained]] - own.logprobs[trained]).tolist()
        assert stats.tokens == stats.measured == len(gaps)
        assert stats.entropy == pytest.approx(entropy, rel=self.relative)
        assert stats.gap_sum == pytest.approx(np.abs(gaps).sum(), rel=self.relative)
        assert stats.gap_max == pytest.approx(np.abs(gaps).max(), rel=self.relative)
        assert list(stats.weights) == [1] and np.allclose(stats.weights[1], gaps, atol=2e-3 + self.tight)
        assert stats.clipped == np.count_nonzero(np.array(gaps) > np.log(CONFIG.importance_cap))
        result = await trainer.step("a", str(tmp_path / "1"))
        assert (result.divisor, result.learning_rate) == (CONFIG.denominator, CONFIG.learning_rate)
        loss = float(oracle.loss([some], CONFIG).detach())
        assert stats.loss / result.divisor == pytest.approx(loss, rel=self.relative)
        assert stats.kl == 0.0
        assert stats.seconds > 0.0

    async def test_a_group_without_signal_counts_and_costs_nothing(self, trainer: Trainer, tmp_path: Path) -> None:
        silent = TrainGroup(0, tuple(replace(s, advantage=0.0) for s in group(1).sequences))
        opened = await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        stats = await trainer.accumulate("a", (silent,))
        stepped = await trainer.step("a", str(tmp_path / "1"))
        assert (stats.tokens, stats.measured) == (sum(int(s.mask.sum()) for s in silent.sequences), 0)
        assert (stats.loss, stats.entropy, stats.gap_sum, stats.weights) == (0.0, 0.0, 0.0, {})
        assert (stepped.step, stepped.grad_norm, stepped.checksum) == (1, 0.0, opened.checksum)

    @pytest.mark.parametrize("epochs", [1, 2])
    async def test_a_step_without_signal_moves_nothing(self, trainer: Trainer, tmp_path: Path, epochs: int) -> None:
        """Neither by momentum nor by weight decay; the next step is the one that would have followed without it."""
        config = replace(CONFIG, weight_decay=0.1, epochs=epochs)
        silent = TrainGroup(0, tuple(replace(s, advantage=0.0) for s in group(1).sequences))
        for name in ("a", "b"):
            await trainer.open(name, config, str(tmp_path / name), resume=False)
            await train(trainer, name, (group(1),), tmp_path / f"{name}1")
        await train(trainer, "a", (silent,), tmp_path / "a2")
        before, after = read_state(tmp_path / "a1"), read_state(tmp_path / "a2")
        assert (after.header.step, after.header.updates) == (2, epochs) and before.header.updates == epochs
        for part in ("adapter", "moment1", "moment2"):
            for name, array in getattr(before, part).items():
                assert array.tobytes() == getattr(after, part)[name].tobytes()
        await train(trainer, "a", (group(2),), tmp_path / "a3")
        await train(trainer, "b", (group(2),), tmp_path / "b2")
        assert checksum(read_state(tmp_path / "a3").adapter) == checksum(read_state(tmp_path / "b2").adapter)
        if epochs == 1:
            await train(trainer, "b", (group(3),), tmp_path / "b3")
            assert read_state(tmp_path / "b3").header.updates == 3

    @pytest.mark.parametrize("slots", [seldom(0), 1])
    async def test_a_kl_term_can_pull_to_the_start_version(
        self, new_trainer: NewTrainer, base: str, tmp_path: Path, slots: int
    ) -> None:
        """After a resume, in a pass with a policy that pulls to the base, and after a move within a step."""
        start, here, there = tmp_path / "start", new_trainer(slots=slots), new_trainer(slots=slots)
        await here.open("first", CONFIG, str(tmp_path / "0"), resume=False)
        for _ in range(3):
            await train(here, "first", (group(7),), tmp_path / "trained")
        begin(read_state(tmp_path / "trained"), start)
        config = replace(CONFIG, clip_norm=0.0, kl=0.5)
        oracle, batches = Oracle(base, start), [(group(1),), (group(2),), (group(3), group(4))]
        oracle.reference = Oracle(base, start)
        norms = oracle.steps(batches, config)
        pulled = replace(config, reference=str(start))
        await here.open("a", pulled, str(start), resume=True)
        made = [await train(here, "a", batches[0], tmp_path / "1")]
        for policy, own in (("a", pulled), ("base", config)):
            await here.open(policy, own, str(tmp_path / "1"), resume=True)
        stats, other = await here.accumulate_together((Job("a", batches[1]), Job("base", batches[1])))
        assert isinstance(stats, GroupStats) and isinstance(other, GroupStats) and 0.0 < stats.kl < other.kl / 2
        made.append(await here.step("a", str(tmp_path / "2")))
        await here.accumulate("a", batches[2][:1])
        await there.set_state("a", await here.get_state("a"))
        made.append(await train(there, "a", batches[2][1:], tmp_path / "3"))
        assert [result.grad_norm for result in made] == pytest.approx(norms, rel=10 * self.relative)
        assert oracle.distance(read_state(tmp_path / "3")) < 2 * self.moved

    async def test_with_kl_a_group_without_signal_pulls_to_the_base(self, trainer: Trainer, tmp_path: Path) -> None:
        config = replace(CONFIG, kl=1.0)
        silent = TrainGroup(0, tuple(replace(s, advantage=0.0) for s in group(1).sequences))
        await trainer.open("a", config, str(tmp_path / "0"), resume=False)
        still = await trainer.accumulate("a", (silent,))
        assert still.kl == pytest.approx(0.0, abs=1e-5)
        await train(trainer, "a", (group(1),), tmp_path / "1")
        away = await trainer.accumulate("a", (silent,))
        for number in range(2, 12):
            await train(trainer, "a", (silent,), tmp_path / f"{number}")
        near = await trainer.accumulate("a", (silent,))
        assert away.kl > 1e-3
        assert near.kl < away.kl / 2

    async def test_sequences_without_own_tokens_are_ignored(self, trainer: Trainer, tmp_path: Path) -> None:
        given = sequence([1, 2, 3], 3, 0.5)
        for policy, extra in (("a", ()), ("b", (given,))):
            await trainer.open(policy, CONFIG, str(tmp_path / policy), resume=False)
            await train(trainer, policy, (TrainGroup(0, group(1).sequences + extra),), tmp_path / policy)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


async def train(trainer: Trainer, policy: str, groups: tuple[TrainGroup, ...], path: Path) -> StepResult:
    for one in groups:
        await trainer.accumulate(policy, (one,))
    return await trainer.step(policy, str(path))
