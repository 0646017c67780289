"""Builds llama.cpp for Vulkan in an environment of its own, so that sampling on a card is tested without one."""
