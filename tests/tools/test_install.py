"""What the set-up would install, by profile and by what is there; nothing is installed here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import install, llama, lock, processor, steps

Steps = list[tuple[str, list[str], dict[str, str]]]
"""Title, command and variables of each step that ran."""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Steps:
    """What ran, in a new environment on a machine without compilers for cards, with a PyTorch for processors."""
    found: Steps = []
    venv = tmp_path / ".venv"
    venv.mkdir()

    def step(title: str, command: list[str], variables: dict[str, str] | None = None) -> None:
        found.append((title, command, variables or {}))
        if "wheel" in command:
            out = Path(command[command.index("-w") + 1])
            out.mkdir(parents=True)
            (out / "llama.whl").write_text(" ".join(command))

    monkeypatch.setattr(steps, "step", step)
    monkeypatch.setattr(install, "step", step)
    monkeypatch.setattr(steps, "VENV", venv)
    monkeypatch.setattr(steps, "LOG", tmp_path / "log")
    monkeypatch.setattr(steps, "runs", lambda program: program not in (install.NEEDS_CUDA, llama.IS_THERE))
    monkeypatch.setattr(llama, "check_compilers", lambda: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("TORCH_INDEX", "LLAMA_INDEX", "CMAKE_ARGS"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.fixture
def moved_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts the disk into another machine."""

    def put(name: str) -> None:
        for module in (install, llama):
            monkeypatch.setattr(module, "instruction_sets", lambda: name)

    return put


def compiled(ran: Steps) -> list[str]:
    """What CMake was told, each time that llama.cpp was compiled."""
    told = [variables["CMAKE_ARGS"] for title, _, variables in ran if title.startswith("compiling")]
    return [words.removeprefix("-DLLAVA_BUILD=OFF").strip() for words in told]


def command(ran: Steps, title: str) -> str:
    """The one command of that title."""
    (found,) = [" ".join(words) for said, words, _ in ran if said == title]
    return found


def test_on_a_processor_all_but_pytorch_and_marlaas_has_hashes(ran: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_INDEX", "https://wheels.example")
    install.install("cpu", ["dev"])
    for title, words, _ in ran:
        if "pip" in words and "--no-index" not in words:
            assert ("--require-hashes" in words) != (title in ("installing PyTorch", "installing marlaas"))
            assert "--no-deps" in words
    lists = re.findall(r"hashes/(\w+)\.txt", command(ran, "installing what marlaas needs"))
    assert lists == ["install", "serve", "api", "dev"]
    assert "https://wheels.example" in command(ran, "installing PyTorch")
    assert "cpu.txt" in command(ran, "installing PyTorch")
    assert "--no-build-isolation" in command(ran, "installing marlaas")
    assert compiled(ran) == [""]


def test_for_cards_torch_comes_with_vllm_and_nothing_is_pinned(ran: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    install.install("gpu", ["dev"])
    assert not any("-c" in words for _, words, _ in ran)
    assert f"{steps.ROOT}[gpu,dev]" in command(ran, "installing PyTorch and vLLM")
    assert compiled(ran) == ["-DGGML_CUDA=on"]
    assert [title for title, _, _ in ran][-1] == "installing what llama.cpp needs"


def test_the_demo_has_llama_in_the_background(ran: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else is there when the set-up ends, and the stamp says so."""
    begun: list[str] = []
    monkeypatch.setattr(llama, "_start", begun.append)
    monkeypatch.setenv("PROFILE", "cpu")
    assert install.main([install.BEHIND]) == 0
    assert begun == ["cpu"] and compiled(ran) == [] and install.stamped("cpu", [])
    assert [title for title, _, _ in ran][-1] == "installing marlaas"
    assert all("--no-compile" in words for _, words, _ in ran if "install" in words)
    ran.clear()
    assert install.main([]) == 0 and compiled(ran) == [""], "others wait for it, or do it themselves"
    assert install.main([install.BEHIND]) == 0 and begun == ["cpu"]


def test_the_first_target_mends_a_checkout_of_another_machine(
    ran: Steps, moved_to: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the other machine made another target, and on the way back."""
    monkeypatch.setenv("PROFILE", "cpu")
    moved_to("with AVX-512")
    assert install.main([]) == install.main(["dev"]) == 0
    ran.clear()
    assert install.main([]) == 0 and ran == []
    moved_to("with AVX2")
    assert install.main(["dev"]) == 0 and compiled(ran) == [""]
    assert llama.held_build()[1] == "with AVX2"
    ran.clear()
    assert install.main(["dev"]) == 0 and ran == []
    moved_to("with AVX-512")
    assert install.main([]) == 0 and compiled(ran) == [] and ran
    assert llama.held_build()[1] == "with AVX-512"


def test_a_hash_that_is_wrong_is_said_in_a_sentence(ran: Steps) -> None:
    steps.LOG.write_text(
        f"{steps.HEAD}before\nERROR: something else\n{steps.HEAD}now\n"
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package.\n"
        "    click==8.5.1 from https://wheels.example/click.whl (from -r install.txt (line 5)):\n"
        "        Expected sha256 aaa\n             Got        bbb\n"
    )
    said = "the file that came for click==8.5.1 is not the one that was tested: it has none of its hashes."
    assert steps.last_complaint() == said


@pytest.mark.parametrize(
    ("profile", "extras", "words"),
    [
        ("tpu", [], "There is no profile 'tpu'"),
        ("vulkan", [], "glslc, the comp"),
        ("cpu", ["no"], "There is no extra 'no'"),
    ],
)
def test_what_cannot_be_set_up_is_said_in_a_sentence(
    profile: str,
    extras: list[str],
    words: str,
    ran: Steps,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PROFILE", profile)
    assert install.main(extras) == 1 and ran == []
    assert words in capsys.readouterr().err


V3 = "x86_64 " + " ".join(processor.V3)
REPORTED = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | FMA = 1 | AVX512 = 0 | LLAMAFILE = 1 | OPENMP = 1 | REPACK = 1 | "


def test_it_is_compiled_once_for_a_processor_card_and_wish(
    ran: Steps, moved_to: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved_to("with AVX-512")
    llama.provide("cpu")
    llama.provide("cpu")
    assert compiled(ran) == [""], "it is there"
    llama.held().unlink()
    llama.provide("cpu")
    assert compiled(ran) == [""], "another checkout of the same user"
    assert "llama.whl" in command(ran, "installing the llama.cpp that was compiled for this processor")
    moved_to("with AVX2")
    llama.provide("cpu")
    assert compiled(ran) == ["", ""]
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    llama.provide("vulkan")
    assert compiled(ran)[2:] == ["-DGGML_VULKAN=on"]
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_BLAS=on")
    llama.provide("vulkan")
    assert compiled(ran)[3:] == ["-DGGML_VULKAN=on -DGGML_BLAS=on"]


def test_one_that_does_not_run_is_made_for_the_same_card(ran: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was kept is not taken a second time; if the new one does not run either, the set-up says so."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    llama.provide("vulkan")
    monkeypatch.setattr(steps, "runs", lambda program: False)
    with pytest.raises(steps.Impossible, match="does not start on this processor"):
        llama.provide("vulkan")
    assert compiled(ran) == ["-DGGML_VULKAN=on"] * 2 and llama.held_build() == ("", "")


@pytest.fixture
def index(ran: Steps, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str | None], None]:
    """An index with a wheel that reports what it was compiled for; None: it crashes."""
    monkeypatch.setenv("LLAMA_INDEX", "https://wheels.example")
    before = steps.step

    def step(title: str, words: list[str], variables: dict[str, str] | None = None) -> None:
        before(title, words, variables)
        if "download" in words:
            Path(words[words.index("-d") + 1], "offered.whl").touch()

    monkeypatch.setattr(steps, "step", step)

    def reports(said: str | None) -> None:
        monkeypatch.setattr(steps, "said", lambda program, path: said)

    return reports


def test_a_wheel_that_fits_is_taken(
    ran: Steps, index: Callable[[str | None], None], moved_to: Callable[[str], None]
) -> None:
    moved_to(V3)
    index(REPORTED)
    llama.provide("cpu")
    assert compiled(ran) == [] and "offered.whl" in command(ran, "installing that wheel")
    looked = command(ran, "looking for a wheel of llama.cpp at https://wheels.example")
    assert llama.wanted_llama() in looked and "--index-url https://wheels.example" in looked
    ran.clear()
    llama.provide("cpu")
    assert ran == []


@pytest.mark.parametrize(
    ("said", "machine", "why"),
    [
        (None, V3, "it does not start on this processor"),
        (REPORTED, V3.replace(" avx2", ""), "this processor lacks avx2"),
    ],
)
def test_a_wheel_that_may_not_fit_is_not_taken(
    said: str | None,
    machine: str,
    why: str,
    ran: Steps,
    index: Callable[[str | None], None],
    moved_to: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    moved_to(machine)
    index(said)
    llama.provide("cpu")
    assert compiled(ran) == [""] and why in capsys.readouterr().out


MILAN = (
    "fpu vme de pse sse sse2 ht syscall nx constant_tsc pni ssse3 fma sse4_1 avx f16c bmi1 avx2 smep bmi2 sha_ni vaes"
)

GENOA = f"{MILAN} avx512f avx512_bf16 avx512vl"


@pytest.fixture
def cpuinfo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of a Linux machine with Intel's instructions."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "CPUINFO", path)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return path


def says(path: Path, flags: str) -> str:
    path.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: spectre_v1\n\nprocessor\t: 1\nflags\t\t: {flags}\n")
    return processor.instruction_sets()


def test_other_instructions_are_another_processor(cpuinfo: Path) -> None:
    assert says(cpuinfo, MILAN) != says(cpuinfo, GENOA)
    assert "avx512_bf16" in says(cpuinfo, GENOA) and says(cpuinfo, GENOA).startswith("x86_64 ")


def test_arm(cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd sve i8mm\n")
    assert processor.instruction_sets() == "aarch64 asimd fp i8mm sve"


@pytest.mark.parametrize(
    ("reported", "known", "why"),
    [
        (REPORTED, V3, ""),
        (REPORTED, f"{V3} avx512f", ""),
        (REPORTED, V3.replace("movbe", ""), "this processor lacks movbe"),
        (REPORTED.replace("AVX512 = 0", "AVX512 = 1"), f"{V3} avx512f", "one kind of processor (AVX512)"),
        (REPORTED + "AVX_VNNI = 1 |", V3, "(AVX_VNNI)"),
        (REPORTED + "SOMETHING_NEW = 1 |", V3, "(SOMETHING_NEW)"),
        ("Metal : EMBED_LIBRARY = 1 | ", V3, "does not say"),
        ("CPU : NEON = 1 | ARM_FMA = 1 | ", "aarch64 asimd fp", ""),
        ("CPU : NEON = 1 | ARM_FMA = 1 | DOTPROD = 1 | ", "aarch64 asimd asimddp fp", "(DOTPROD)"),
        ("CPU : NEON = 1 | ", "arm64 hw.optional.neon", "does not say"),
    ],
)
def test_only_a_generic_llama_fits_and_only_a_known_processor(reported: str, known: str, why: str) -> None:
    said = processor.misfit(reported, known)
    assert why in said if why else said == ""


def pins(text: str) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in re.findall(r"(?m)^([\w.-]+)==([\w.]+)", text)}


TESTED = pins(install.PINS.read_text())
LISTS = {path.stem: path.read_text() for path in sorted(steps.HASHES.glob("*.txt"))}


@pytest.mark.parametrize("name", LISTS)
def test_each_package_has_its_hashes(name: str) -> None:
    packages = lock.packages_of(LISTS[name])
    assert packages and len(packages) == len(pins(LISTS[name]))
    for lines in packages.values():
        assert re.search(r"\\\n    --hash=sha256:[0-9a-f]{64}", lines)


def test_versions_are_those_that_were_tested() -> None:
    for name in ("install", "serve", "api", "dev", "docs", "llama"):
        for package, version in pins(LISTS[name]).items():
            assert TESTED.get(package, version) == version
    listed = set().union(*(pins(text) for text in LISTS.values()))
    assert TESTED.keys() - listed == {"torch"}


def test_what_the_project_needs_is_in_the_lists() -> None:
    project = tomllib.loads((steps.ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    base = pins(LISTS["install"]) | {"torch": TESTED["torch"]} | pins(LISTS["llama"])
    served = base | pins(LISTS["serve"])
    gated = base | pins(LISTS["api"])
    whole = served | gated | pins(LISTS["dev"])
    needs = (
        (project["dependencies"] + extras["cpu"], base),
        (extras["serve"], served),
        (extras["api"], gated),
        (extras["dev"], whole),
        (extras["docs"], base | pins(LISTS["docs"])),
    )
    for lines, there in needs:
        for requirement in map(Requirement, lines):
            assert requirement.specifier.contains(there[canonicalize_name(requirement.name)]), requirement
