"""The trainer: a step beside transformers and PEFT, and eight tenants on one base."""
