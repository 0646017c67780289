"""Builds llama.cpp for Vulkan in an environment of its own, so that its way over a card is tested without one."""
