"""A small tool loop for applications: tools, a registry, a dispatcher, model turns, the loop, and its trace."""
