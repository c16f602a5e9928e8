"""Configuration of the site that `make docs` builds with Sphinx: the pages of the repository, as they are."""

from __future__ import annotations

project = "toolsim"
extensions = ["myst_parser"]
root_doc = "addon/docs/website/index"
include_patterns = [
    "README.md",
    "addon/docs/*.md",
    "addon/docs/website/index.md",
    "addon/toolsim/README.md",
    "addon/toolsim/proxy/mitmproxy12/README.md",
    "tests/bench/results.md",
    "tests/mutants/results.md",
]
# Not searched, to be quick.
exclude_patterns = [".*", "build", "flows", "**/node_modules", "**/__pycache__"]

# The anchors of GitHub.
myst_heading_anchors = 4
# Blocks in languages that only look like JSON or TOML.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = "toolsim"
html_copy_source = False
html_show_sphinx = False
