"""State files with LoRA matrices and moments, exports for PEFT and llama.cpp, retention."""
