"""Products with stacked experts."""
