"""Operations on a home for screens, verbs and Python."""
