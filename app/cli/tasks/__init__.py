"""Verbs about tasks in the queue: submit, list, watch, steer, extend and compare them."""
