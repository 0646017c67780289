"""Makes base models with random weights in the layouts of Qwen and Llama: what tests and benchmarks run on."""
