"""The families of base models: their configuration, control tokens and tokenizers. Knows no weights.

Facts of the published models, as their ``config.json`` and ``tokenizer_config.json`` have them. A tokenizer is a
byte-level BPE (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.2) with a
vocabulary that is made by rule, not trained: common English words first, then all short combinations of letters, the
characters of other scripts, and longer combinations until there are enough. No normaliser, unlike Qwen's: every text
comes back byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

Settings = dict[str, Any]
"""The content of a JSON file."""


@dataclass(frozen=True)
class Shape:
    """How large a model is."""

    layers: int
    hidden: int
    inner: int
    """Width of the feed-forward part."""
    heads: int
    kv_heads: int


SHAPES = {
    "mini": Shape(layers=2, hidden=64, inner=160, heads=4, kv_heads=2),
    "bench": Shape(layers=4, hidden=256, inner=1024, heads=4, kv_heads=2),
    "0.5b": Shape(layers=24, hidden=896, inner=4864, heads=14, kv_heads=2),
    "1.5b": Shape(layers=28, hidden=1536, inner=8960, heads=12, kv_heads=2),
}
"""One for tests, one for benchmarks of real vocabularies, and the sizes of Qwen2.5-0.5B and Qwen2.5-1.5B."""


@dataclass(frozen=True)
class Family:
    """One family's layout."""

    template: str
    """Its chat template, a file in ``templates``."""
    tied: bool
    """Whether the head shares the embedding's weights, by default."""
    rows: int
    """Rows of the embedding, by default."""
    first_control: int
    """Id of the first control token: that many tokens of text come before, and further ones after them."""
    control: tuple[str, ...]
    text_behind: bool
    """Whether rows after the control tokens are tokens of text; else they mean nothing, as in Qwen."""
    spoken: tuple[str, ...]
    """Control tokens that stay in the text when special tokens are left out."""
    bos: str | None
    eos: str
    pad: str
    ends: tuple[str, ...]
    """Tokens that end a reply, as ``generation_config.json`` names them."""
    digits: str
    """How many digits one piece of text may hold, as a regular expression."""
    settings: Callable[[Shape, bool], Settings]
    """The family's part of ``config.json``, of a shape and whether the head is tied."""
    sampling: Settings
    """The sampling settings of ``generation_config.json``."""


QWEN_CONTROL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
SPOKEN = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)


def _reserved(first: int, count: int) -> tuple[str, ...]:
    return tuple(f"<|reserved_special_token_{number}|>" for number in range(first, first + count))


LLAMA_CONTROL = (
    *("<|begin_of_text|>", "<|end_of_text|>", *_reserved(0, 2), "<|finetune_right_pad_id|>", *_reserved(2, 1)),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", *_reserved(3, 245)),
)


def _qwen2(shape: Shape, tied: bool) -> Settings:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "max_position_embeddings": 32768,
        "max_window_layers": shape.layers,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
    }


def _qwen2_5(shape: Shape, tied: bool) -> Settings:
    return _qwen2(shape, tied) | {"max_window_layers": shape.layers - 1, "sliding_window": 32768}


def _qwen3(shape: Shape, tied: bool) -> Settings:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 2 * shape.hidden // shape.heads,
        "max_position_embeddings": 40960,
        "max_window_layers": shape.layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1_000_000,
    }


def _llama3(shape: Shape, tied: bool) -> Settings:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "head_dim": shape.hidden // shape.heads,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "factor": 32.0 if tied else 8.0,  # 3.2 and 3.1
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
    }


def _qwen(template: str, settings: Callable[[Shape, bool], Settings], control: int, sampling: Settings) -> Family:
    names = QWEN_CONTROL[:control]
    return Family(
        template=template,
        tied=True,
        rows=151_936,
        first_control=151_643,
        control=names,
        text_behind=False,
        spoken=tuple(name for name in SPOKEN if name in names),
        bos=None,
        eos="<|im_end|>",
        pad="<|endoftext|>",
        ends=("<|im_end|>", "<|endoftext|>"),
        digits=r"\p{N}",
        settings=settings,
        sampling=sampling,
    )


FAMILIES = {
    "qwen2": _qwen("qwen2", _qwen2, 3, {"repetition_penalty": 1.1, "temperature": 0.7, "top_k": 20, "top_p": 0.8}),
    "qwen2.5": _qwen(
        "qwen2.5", _qwen2_5, 22, {"repetition_penalty": 1.1, "temperature": 0.7, "top_k": 20, "top_p": 0.8}
    ),
    "qwen3": _qwen("qwen3", _qwen3, 26, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
    "llama3": Family(
        template="llama3",
        tied=False,
        rows=128_256,
        first_control=128_000,
        control=LLAMA_CONTROL,
        text_behind=True,
        spoken=(),
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        pad="<|finetune_right_pad_id|>",
        ends=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        digits=r"\p{N}{1,3}",
        settings=_llama3,
        sampling={"temperature": 0.6, "top_p": 0.9},
    ),
}
"""By the family's name on the command line."""


TEMPLATES = Path(__file__).parent / "templates"
LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
"""The commonest first: that is also the order in which pairs are merged."""
COMMON = """
the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one
you were all her she there would their we him been has when who will no more if out so up said what its about than into
them can only other time new some could these two may first then do any like my now over such our man me even most made
after also did many off before must well back through years where much your way down should because long each just
state those people too mister how little good world make very year still see own work men day get here old life both
between being under three never know same last another while us might great go come since against right came take used
himself few house use place during high without again home around small however found put part say thing general end
once school upon number every left always need something course fact though water less public think almost hand enough
far took head yet better set told nothing night why eyes find going look asked later knew point next program city give
group toward young days let room within children side social present given several order often form important large
case big become four interest power best line second along area full until began open kind door light different sense
name seemed mean help show study able done whole hear food close among real turn above across white ever sure word keep
money family problem field cannot week story body voice call class ask free question change move true early town tree
hold learn play plant near land country earth read write letter answer page mother father sister brother friend start
run walk talk stop stand sit sleep eat drink buy sell pay cost send bring carry build break cut draw drive fall feel
fight fill fly follow forget grow guess hang happen hate hit hope hurt join jump laugh lead leave lend lie listen lose
love meet miss notice offer pass pick pull push raise reach remember repeat reply rest return ride ring rise save seem
serve shake share shine shoot shout shut sing smell smile speak spend spread steal stay strike swim teach tear tell
thank throw touch travel trust try understand visit wait wake want warn wash watch wear win wish wonder worry afraid
alone angry bad beautiful bright busy cheap clean clear cold cool dark dead deep dry easy empty equal fair false fast
fat fine fresh glad hard happy heavy hot ill late lazy loud low lucky narrow nice noisy poor proud quick quiet quite
rare ready rich rough round sad safe sharp short sick silent simple slow smooth soft sorry sour special square straight
strange strong sweet tall thick thin tired warm weak wet wide wild wrong air animal apple arm art baby ball bank bath
bed bell bird blood boat bone book bottle bowl box boy branch bread bridge bus butter cake camera camp car card cat
cause chair chance church circle clock cloth cloud coat coffee color colour corner count cow cup date daughter desk
dinner doctor dog dollar dream dress ear east edge effect egg engine evening event example expect eye face farm finger
fire fish flat floor flower foot forest fruit game garden girl glass gold grass ground hair half hall hat heart hill
history holiday horse hospital hour ice idea industry island job key king kitchen knife lake language law leaf leg
lesson level library list lunch machine map market matter meal meat message method middle milk mind minute mirror
mistake moment month moon morning mountain mouth movie music neck news newspaper north nose office oil orange pain
paint paper parent park party pen pencil person phone picture piece pig plan plane plate pocket police position
possible post practice price prince queen radio rain reason record red green blue black brown yellow result river road
rock roof rule salt sand science sea seat sentence shape ship shirt shoe shop shoulder sign silver size skin sky snow
soap son song sound south space sport spring stair star endpoint step stone store storm street student sugar summer sun
surface system table tail teacher team test thousand hundred million ticket tomorrow yesterday today tongue tooth top
trade train trip trouble truth uncle unit university valley value village wall war weather west wheel wife wind window
winter woman women wood yard zero five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty seventy
eighty ninety third fourth fifth sixth quarter double single total sum difference product quotient remainder apples
oranges bought sold gave away together altogether per speed distance hours minutes dozen percent ratio fraction decimal
digit digits odd prime factor multiple root cube exponent equation solve solution variable constant function graph
slope angle triangle rectangle radius diameter volume perimeter length width height weight mass meter metre centimetre
kilometre gram kilogram litre average median mode maximum minimum positive negative integer rational complex vector
matrix proof prove theorem assume therefore hence thus suppose consider define denote contain satisfy exist unique
compute calculate estimate evaluate simplify expand substitute multiply divide add subtract plus minus times equals
greater smaller correct incorrect final reasoning thinking thought okay hmm actually alternatively finally recall check
verify import self def print input output string dict tuple float object values keys index range loop continue except
error exception lambda yield async await none null const var static void private array boolean char struct type enum
switch default template namespace model models token tokens prompt user assistant tool tools calls response request
messages content role argument arguments parameter parameters description required properties results search query data
file files folder path directory command code tests server client network database column row schema numbers option
options setting settings version update install package module source target deploy memory processor computer software
hardware internet website email password account security policy reward agent environment action episode training
learning instruction following information examples available provide support include create remove delete insert
select format convert process generate produce government president economy economic political national international
development management business company companies education research scientific medical health community society
culture tradition individual particular necessary various certain common similar likely probably perhaps already
usually sometimes especially generally increase decrease improve reduce require allow describe explain discuss compare
contrast analysis theory evidence experiment temperature pressure energy chemical biological physical natural material
structure element compound
"""
"""Words that the vocabulary has whole: common English, and those of problems, programs and tools."""


def control_ids(family: Family, rows: int) -> dict[str, int]:
    """Each control token's id: the family's usual one, or at the end of a smaller embedding.

    Raises ``ValueError`` if the bytes and the control tokens need more rows.
    """
    first = min(family.first_control, rows - len(family.control))
    if first < 256:
        raise ValueError(f"An embedding of {rows} rows is too small: {256 + len(family.control)} is the least.")
    return {name: first + offset for offset, name in enumerate(family.control)}


def tokenizer(family: Family, rows: int) -> Tokenizer:
    """The tokenizer of an embedding with this many rows."""
    control = control_ids(family, rows)
    first, behind = min(control.values()), max(control.values()) + 1
    ids = [*range(first), *(range(behind, rows) if family.text_behind else ())]  # as the vocabulary is made
    tokens, merges = build(len(ids), numbers=family.digits != r"\p{N}")
    vocabulary = dict(zip(tokens, ids, strict=True)) | (control if family.text_behind else {})
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(pieces(family)), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    if family.bos is not None:  # Llama's puts its first token before every text, unless it is not to
        begin = (family.bos, control[family.bos])
        template = processors.TemplateProcessing(
            single=f"{family.bos} $A", pair=f"{family.bos} $A {family.bos}:1 $B:1", special_tokens=[begin]
        )
        made.post_processor = processors.Sequence([made.post_processor, template])
    made.add_tokens([AddedToken(name, special=name not in family.spoken, normalized=False) for name in control])
    return made


def tokenizer_config(family: Family, rows: int, context: int) -> Settings:
    """The content of ``tokenizer_config.json``, chat template included."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    control = {
        str(number): {"content": name, **plain, "special": name not in family.spoken}
        for name, number in control_ids(family, rows).items()
    }
    return {
        "added_tokens_decoder": control,
        "add_prefix_space": False,
        "bos_token": family.bos,
        "chat_template": (TEMPLATES / f"{family.template}.jinja").read_text("utf-8"),
        "clean_up_tokenization_spaces": False,
        "eos_token": family.eos,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": context,
        "pad_token": family.pad,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def pieces(family: Family) -> str:
    """The regular expression by which text is cut before BPE: contractions, words, digits, signs, white space."""
    words = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"[^\r\n\p{L}\p{N}]?\p{L}+", family.digits)
    return "|".join((*words, r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"))


@lru_cache(maxsize=4)
def build(size: int, numbers: bool) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """``size`` tokens, at least 256, and the merges that make them; takes about a second.

    Tokens are as byte-level BPE files write them: the bytes as printable characters, then what the merges make.
    ``numbers``: also those of two and three digits.
    """
    names = byte_characters()
    made = dict.fromkeys(sorted(names))
    if size < len(made):
        raise ValueError(f"A byte-level vocabulary has at least {len(made)} tokens, not {size}.")
    ranks: dict[tuple[str, str], int] = {}
    for wanted in _wanted(numbers):
        if len(made) == size:
            break
        parts = [names[byte] for byte in wanted]
        while len(parts) > 1:  # as the merges so far have it
            order = [ranks.get(pair, len(ranks)) for pair in pairwise(parts)]
            if (best := min(order)) == len(ranks):
                break
            at = order.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        while len(parts) > 1 and len(made) < size:
            ranks.setdefault((parts[0], parts[1]), len(ranks))
            parts[:2] = [parts[0] + parts[1]]
            made[parts[0]] = None
    return tuple(made), tuple(ranks)


def byte_characters() -> list[str]:
    """The printable character by which byte-level BPE files write each of the 256 bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())  # printable bytes as themselves, then one for each other
    shown = [ord(character) for character in alphabet if ord(character) < 256]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [character for _, character in sorted(zip(shown + hidden, alphabet, strict=True))]


def _wanted(numbers: bool) -> Iterator[bytes]:
    """Tokens by importance, as UTF-8; some are parts of characters."""
    words = COMMON.split()
    texts = [f" {letter}" for letter in LETTERS] + [f" {word}" for word in words]
    texts += ["\n" * count for count in range(2, 5)] + [" " * count for count in range(2, 17)]
    if numbers:
        texts += ["".join(digits) for count in (2, 3) for digits in product("0123456789", repeat=count)]
    for word in words:
        texts += [f" {word.capitalize()}", word.capitalize(), word]
    for count in (2, 3):
        for letters in map("".join, product(LETTERS, repeat=count)):
            texts += [letters, f" {letters}", letters.capitalize(), letters.upper()]
    yield from (text.encode() for text in texts)
    following = range(0x80, 0xC0)
    yield from map(bytes, product(range(0xC2, 0xE0), following))  # Latin, Greek, Cyrillic, Hebrew and Arabic
    yield from map(bytes, product(range(0xE3, 0xEA), following, following))  # Japanese and Chinese
    yield from ("".join(letters).encode() for letters in product(LETTERS, repeat=4))
