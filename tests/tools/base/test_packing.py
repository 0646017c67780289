"""Rows hold whole conversations, and the model does not look across them."""

import torch

from tools.base.make import END, IGNORED, Packer, build_network, build_tokenizer

TOKENIZER = build_tokenizer()
PACKER = Packer(TOKENIZER, rows=8, length=256, seed=3)


def test_a_batch_depends_on_its_step_only() -> None:
    assert torch.equal(PACKER.batch(5).ids, PACKER.batch(5).ids)
    assert not torch.equal(PACKER.batch(5).ids, PACKER.batch(6).ids)


def test_rows_are_nearly_full() -> None:
    assert (PACKER.batch(0).ids == TOKENIZER.pad_token_id).float().mean() < 0.1


def test_labels_are_what_the_assistant_says() -> None:
    words = "<|user|>47+85=<|end|><|assistant|>132<|end|><|user|>x<|end|>"
    labels = PACKER.spoken(TOKENIZER.encode(words, add_special_tokens=False))
    assert TOKENIZER.decode([i for i in labels if i != IGNORED]) == f"132{END}"


def test_no_attention_across_conversations() -> None:
    torch.manual_seed(0)
    network = build_network(TOKENIZER).eval()
    batch = PACKER.batch(0)
    starts = [i for i, p in enumerate(batch.positions[0].tolist()) if p == 0]
    second = slice(starts[1], starts[2])
    with torch.no_grad():
        packed = network(input_ids=batch.ids, position_ids=batch.positions, use_cache=False).logits[0, second]
        alone = network(input_ids=batch.ids[:1, second]).logits[0]
    assert torch.allclose(packed, alone, atol=1e-5)
