"""How to start known coding agents. Each was trained at the version in ``tests/slow/clients``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# A prompt comes by standard input if the program reads it there: such a prompt may be long, and may begin with a dash.


@dataclass(frozen=True)
class Form:
    """How one agent is started without a person, and asks nobody but the episode's model."""

    command: tuple[str, ...]
    install: str
    context: int
    """The fewest tokens of Qwen2.5 that hold its own prompt and a few replies."""
    stdin: str = "{prompt}"
    files: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


_CODEX = """\
model = "{model}"
model_provider = "marlaas"
sandbox_mode = "workspace-write"

[model_providers.marlaas]
name = "marlaas"
base_url = "{url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""
_CLAUDE_CODE = """\
{"permissions": {"defaultMode": "acceptEdits", "allow": ["Bash", "Edit", "Write", "NotebookEdit", "WebFetch"]}}
"""
_OPENCODE = """\
{
  "model": "marlaas/{model}",
  "small_model": "marlaas/{model}",
  "share": "disabled",
  "autoupdate": false,
  "permission": "allow",
  "provider": {
    "marlaas": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "{url}", "apiKey": "{key}"},
      "models": {"{model}": {}}
    }
  }
}
"""
_PI = """\
{
  "providers": {
    "marlaas": {
      "api": "openai-completions",
      "baseUrl": "{url}",
      "apiKey": "OPENAI_API_KEY",
      "models": [{"id": "{model}"}]
    }
  }
}
"""
_QWEN_CODE = """\
{
  "security": {"auth": {"selectedType": "openai"}},
  "model": {"name": "{model}"},
  "memory": {"enableManagedAutoMemory": false},
  "privacy": {"usageStatisticsEnabled": false},
  "general": {"enableAutoUpdate": false}
}
"""
FORMS = {
    "codex": Form(
        ("codex", "exec", "--skip-git-repo-check"),
        "npm install -g @openai/codex",
        16_384,
        files={"~/.codex/config.toml": _CODEX},
    ),
    "claude-code": Form(
        ("claude", "-p"),
        "npm install -g @anthropic-ai/claude-code",
        32_768,
        files={"~/.claude/settings.json": _CLAUDE_CODE},
        variables={
            "ANTHROPIC_MODEL": "{model}",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    ),
    "opencode": Form(
        ("opencode", "run", "--title", "marlaas"),
        "npm install -g opencode-ai",
        16_384,
        files={"~/.config/opencode/opencode.json": _OPENCODE},
        variables={"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
    ),
    "pi": Form(
        ("pi", "-p", "--provider", "marlaas", "--model", "{model}", "--offline"),
        "npm install -g @mariozechner/pi-coding-agent",
        8_192,
        files={"~/.pi/agent/models.json": _PI},
    ),
    "qwen-code": Form(
        ("qwen", "--approval-mode", "yolo"),
        "npm install -g @qwen-code/qwen-code",
        32_768,
        files={"~/.qwen/settings.json": _QWEN_CODE},
        variables={"QWEN_CODE_MAX_OUTPUT_TOKENS": "32000"},  # else it asks again for a longer reply if one was cut off
    ),
    "aider": Form(
        ("aider", "--message-file", "/dev/stdin"),
        "pip install aider-chat",
        4_096,
        variables={
            "AIDER_MODEL": "openai/{model}",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "AIDER_YES_ALWAYS": "true",
            "AIDER_STREAM": "false",
            "AIDER_GIT": "false",
            "AIDER_ANALYTICS": "false",
            "AIDER_CHECK_UPDATE": "false",
            "AIDER_SHOW_MODEL_WARNINGS": "false",
            "AIDER_SHOW_RELEASE_NOTES": "false",
        },
    ),
    "mini-swe-agent": Form(
        ("mini", "--task={prompt}", "--yolo", "--exit-immediately"),
        "pip install mini-swe-agent",
        4_096,
        stdin="",
        variables={
            "MSWEA_MODEL_NAME": "openai/{model}",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    ),
}


def form_of(agent: object) -> Form:
    """Raises ``ValueError`` with the known names, the nearest first."""
    if isinstance(agent, str) and agent in FORMS:
        return FORMS[agent]
    from difflib import get_close_matches  # only a mistake needs it

    near = get_close_matches(str(agent), FORMS, n=len(FORMS), cutoff=0.0)
    raise ValueError(f"there is no agent {agent!r:.40}; there is {', '.join(dict.fromkeys((*near, *FORMS)))}")


def install_of(command: str) -> str:
    """How the program with this name is installed; empty for an unknown one."""
    return next((form.install for form in FORMS.values() if form.command[0] == command), "")
