import pytest
from support.each import each
from toolsim.core.conversation import Call, CallOutput, Image, Message, Raw, Text
from toolsim.core.errors import BadRequest
from toolsim.wire.content import chat_content, read_parts, responses_content, translate_item, translate_parts

FILE = {"type": "input_file", "file_data": "data:x", "filename": "a.pdf"}
CHAT_FILE = {"type": "file", "file": {"file_data": "data:x", "filename": "a.pdf"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
STORED_IMAGE = {"type": "input_image", "file_id": "file_1", "detail": "auto"}


@each("api_name", ["responses", "chat"])
@each(
    ("content", "parts"),
    [
        (None, ()),
        ("hi", (Text("hi"),)),
        ([], ()),
        (["hi", {"type": "text", "text": "there"}], (Text("hi"), Text("there"))),
        ([{"type": "input_text", "text": ""}], (Text(""),)),
        ([{"type": "output_text", "text": "x", "annotations": [], "logprobs": []}], (Text("x"),)),
        ([{"type": "refusal", "refusal": "no"}], (Text("no"),)),
        ([{"type": "input_image", "image_url": "u", "detail": "low"}], (Image("u", "low"),)),
        ([{"type": "image_url", "image_url": {"url": "u", "detail": "high"}}], (Image("u", "high"),)),
        ([{"type": "image_url", "image_url": {"url": "u"}}], (Image("u"),)),
    ],
)
def test_parts_of_both_apis_are_accepted(content, parts, api_name):
    """Text and images are accepted in the formats of the chat and Responses APIs, at the endpoints of either API."""
    assert read_parts(content, api_name, "content") == parts


@pytest.mark.parametrize("part", [FILE, AUDIO, STORED_IMAGE, {"type": "new_kind"}, {}, {"type": 3}])
def test_other_parts_are_kept_as_sent(part):
    """Content parts other than text, and images without a URL, are kept exactly as the client sent them."""
    assert read_parts([part], "responses", "content") == (Raw("responses", part),)


@each(
    ("content", "param"),
    [
        (3, "c"),
        ({}, "c"),
        ([3], "c[0]"),
        (["x", None], "c[1]"),
        ([{"type": "text"}], "c[0].text"),
        ([{"type": "text", "text": 1}], "c[0].text"),
        ([{"type": "refusal"}], "c[0].refusal"),
        ([{"type": "image_url", "image_url": 1}], "c[0].image_url"),
        ([{"type": "image_url", "image_url": {}}], "c[0].image_url.url"),
        ([{"type": "image_url", "image_url": {"url": "u", "detail": 1}}], "c[0].image_url.detail"),
        ([{"type": "input_image", "image_url": "u", "detail": 1}], "c[0].detail"),
    ],
)
def test_malformed_content(content, param):
    """Malformed content causes an error with status 400 that gives the exact path of the field."""
    with pytest.raises(BadRequest) as caught:
        read_parts(content, "chat", "c")
    assert caught.value.error.param == param


@each(
    ("part", "to", "translated"),
    [
        (Text("x"), "chat", Text("x")),
        (Image("u"), "responses", Image("u")),
        (Raw("chat", CHAT_FILE), "chat", Raw("chat", CHAT_FILE)),
        (Raw("responses", FILE), "chat", Raw("chat", CHAT_FILE)),
        (Raw("chat", CHAT_FILE), "responses", Raw("responses", FILE)),
        (Raw("chat", AUDIO), "responses", Raw("responses", AUDIO)),
        (Raw("responses", {"type": "input_file", "file_url": "u"}), "chat", "[document u, not shown]"),
        (Raw("responses", STORED_IMAGE), "chat", "[image file_1, not shown]"),
        (Raw("chat", {"type": "file", "file": 3}), "responses", "[document, not shown]"),
        (Raw("chat", {"type": ["file"]}), "responses", "[part, not shown]"),
        (Raw("chat", AUDIO), None, "[audio wav, 1 B, not shown]"),
    ],
)
def test_translate_parts(part, to, translated):
    """Files and audio are converted between the chat and Responses APIs. Parts without an equivalent are replaced with
    a description.
    """
    notes = []
    is_line = isinstance(translated, str)
    expected = Text(translated) if is_line else translated
    assert translate_parts((part, Text("y")), to, notes) == (expected, Text("y"))
    assert notes == ["content part"] * is_line


@pytest.mark.parametrize("item", [Message("user", (Text("x"), Image("u"))), CallOutput("c", (Text("x"),))])
def test_translate_item_unchanged(item):
    """If an item needs no conversion, the original object is returned."""
    assert translate_item(item, "chat", []) is item


def test_chat_content():
    """Content that contains only text becomes one string, which every backend accepts. Other content becomes an
    array.
    """
    assert chat_content(()) == ""
    assert chat_content((Text("a"), Text("b"))) == "a\nb"
    assert chat_content((Text("a"), Image("u"), Image("v", "low"), Raw("chat", AUDIO))) == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "u"}},
        {"type": "image_url", "image_url": {"url": "v", "detail": "low"}},
        AUDIO,
    ]


def test_responses_content():
    """In Responses content, text from the assistant becomes output text, and all other text becomes input text."""
    assert responses_content("assistant", [Text("a")]) == [{"type": "output_text", "text": "a", "annotations": []}]
    assert responses_content("user", [Text("a"), Image("u"), Image("v", "low"), Raw("responses", FILE)]) == [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "u", "detail": "auto"},
        {"type": "input_image", "image_url": "v", "detail": "low"},
        FILE,
    ]


def test_translate_item() -> None:
    """The parts of messages and outputs are translated, and calls are kept. The role ``developer`` becomes ``system``
    for a chat backend.
    """
    audio = Raw("chat", {"type": "input_audio", "input_audio": {}})
    notes: list[str] = []
    for role in ("system", "developer", "user", "assistant"):
        message = Message(role, (Text("a"), Raw("chat", {"type": "other"})), "n")
        there = "system" if role == "developer" else role
        named = (Text("a"), Text("[other, not shown]"))
        assert translate_item(message, "responses", notes) == Message(role, named, "n")
        assert translate_item(message, "chat", []) == Message(there, message.parts, "n")
    assert notes == ["content part"] * 4
    output = CallOutput("c", (audio,), "f")
    assert translate_item(output, "responses", []) == CallOutput("c", (Raw("responses", audio.part),), "f")
    call = Call("c", "f", "{}")
    assert translate_item(call, "chat", []) is call
