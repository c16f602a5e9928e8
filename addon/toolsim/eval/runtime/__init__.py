"""A small tool loop for applications, with tools, their dispatcher, model turns, the loop, and its trace."""
