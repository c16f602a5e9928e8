"""A small tool loop for applications to import: tools, their dispatcher, model turns, the loop, and its trace."""
