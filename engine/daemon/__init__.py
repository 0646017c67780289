"""The engine's process: one a home, locked; starts everything else. The app controls it by ``control``."""
