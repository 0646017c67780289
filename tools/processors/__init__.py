"""Tests of arithmetic under every instruction set of this processor, and on a llama.cpp for an older one."""
