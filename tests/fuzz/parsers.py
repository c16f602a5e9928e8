"""Fuzzes the parsers. Unlike hypothesis, the fuzzer (libFuzzer, through atheris) is guided by branch coverage."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["toolsim"]):
    from fuzz.targets import SEEDS, WORDS, one


def _dictionary() -> str:
    return "".join(f'"{"".join(f"\\x{byte:02x}" for byte in word.encode())}"\n' for word in WORDS if word)


def main() -> None:
    """Fuzz for the seconds in the first argument, starting from the seeds. Write findings to the current folder."""
    folder = Path(tempfile.mkdtemp(prefix="toolsim-fuzz-"))
    corpus, dictionary = folder / "corpus", folder / "words"
    corpus.mkdir()
    dictionary.write_text(_dictionary())
    for number, seed in enumerate(SEEDS):
        (corpus / str(number)).write_bytes(seed)
    limits = ["-max_len=1024", "-timeout=20", "-print_final_stats=1", f"-dict={dictionary}"]
    atheris.Setup([sys.argv[0], f"-max_total_time={sys.argv[1]}", *limits, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
