"""Operations on one element at a time."""
