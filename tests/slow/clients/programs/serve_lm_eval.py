"""lm-eval measures a model by ``local-completions``: prompts in tokens, in batches, with echo and log-probabilities.

python serve_lm_eval.py MODEL BASE_FOLDER
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

folder = Path(tempfile.mkdtemp())
rows = [{"question": f"{a}+{b}=", "right": str(a + b), "wrong": "abc"} for a in (12, 47, 56) for b in (34, 85)]
(folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
(folder / "sums.yaml").write_text(f"""
task: marlaas_sums
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder / "sums.jsonl"}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["{{{{right}}}}", "{{{{wrong}}}}"]
doc_to_target: 0
target_delimiter: ""
metric_list:
  - metric: acc
metadata:
  version: 1
""")
(folder / "words.yaml").write_text(f"""
task: marlaas_words
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder / "sums.jsonl"}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{right}}}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 8
metric_list:
  - metric: exact_match
metadata:
  version: 1
""")
arguments = {
    "model": sys.argv[1],
    "base_url": f"{os.environ['OPENAI_BASE_URL']}/completions",
    "tokenizer": sys.argv[2],
    "tokenizer_backend": "huggingface",
    "tokenized_requests": True,
    "max_length": 1024,
    "num_concurrent": 2,
}
found = lm_eval.simple_evaluate(
    model="local-completions",
    model_args=arguments,
    tasks=["marlaas_sums", "marlaas_words"],
    task_manager=TaskManager(include_path=str(folder), include_defaults=False),
    batch_size=4,
)
results = found["results"]
print(json.dumps({name: results[name] for name in ("marlaas_sums", "marlaas_words")}, default=str))
