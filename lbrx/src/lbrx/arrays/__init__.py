"""Arrays as values: element types, shapes and layouts, and what holds their bytes."""
