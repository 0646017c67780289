"""The engine as a process: one per home, started when needed, outliving the app that started it."""
