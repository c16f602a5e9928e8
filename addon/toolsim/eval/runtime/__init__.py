"""A small tool loop for applications: tools, their dispatcher, model turns, the loop, and its trace."""
