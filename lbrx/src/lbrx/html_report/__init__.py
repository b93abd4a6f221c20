"""Reports as one HTML file: the frame of a page with its style, and plots as SVG."""
