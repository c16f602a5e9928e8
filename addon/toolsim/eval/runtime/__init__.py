"""A small tool loop that an application can import: tools, their dispatch, one model turn, the loop, its trace."""
