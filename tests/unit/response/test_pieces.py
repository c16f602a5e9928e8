from __future__ import annotations

import pytest
from toolsimlib.response.pieces import Block


@pytest.mark.parametrize("closing", ["", "</t>", "</t", "</function>"])
def test_a_block_is_its_parts(closing: str) -> None:
    """A block's raw text is what the model wrote: the tags, whatever they are, and all between them."""
    assert Block("json", "<t>", ' {"a":1}', closing).raw == f'<t> {{"a":1}}{closing}'
