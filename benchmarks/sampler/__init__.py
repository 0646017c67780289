"""Tokens a second of samplers, beside plain llama.cpp and torch, and how work is spread over them."""
