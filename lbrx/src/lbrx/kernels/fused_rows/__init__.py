"""Elementwise steps and row reductions in one kernel."""
