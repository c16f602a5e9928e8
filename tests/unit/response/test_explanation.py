"""Tests for distinguishing sentences that introduce an example from sentences that announce a call."""

from __future__ import annotations

from support.each import each
from support.growth import LINEAR, growth
from toolsim.response.explanation import introduces_example


@each(
    "before",
    [
        "Here is an example of the JSON:\n\n",
        "Here's a general example of how to invoke the function:",
        "For example:\n",
        "For instance, one could write\n\n",
        "Examples:\n",
        "- Example call:\n",
        "It is JSON. An example.\n",
        "You can write a call, for example:",
        "Use the form that it expects, e.g.\n",
        "That is what such a call looks like:\n",
        "As an example, the call for Rome:\n",
        "Zum Beispiel:\n",
        "Voici un exemple :\n",
        "例如：\n",
        "A sample call:\n",
        "Here is a sample tool call:\n",
        "The format of a call is as follows:\n",
        "The syntax for such a request is:\n",
        "Never send a call like this one:\n",
        "Please don't write anything like this:\n",
        "In your last message you wrote:\n",
        "You sent:\n",
        "Your previous call was:\n",
        "The documentation shows:\n",
        "Wrong:\n",
        "A hypothetical call:\n",
        "Вот пример вызова:\n",
        "Например:\n",
        "Наприклад:\n",
        "Przykład wywołania:\n",
        "Na przykładzie:\n",
        "Například:\n",
        "Příklad volání:\n",
        "Például:\n",
        "Örnek çağrı:\n",
        "Ett exempel:\n",
        "Et eksempel:\n",
        "Esimerkki:\n",
        "Contoh pemanggilan:\n",
        "Ví dụ:\n",
        "ตัวอย่างการเรียก:\n",
        "उदाहरण:\n",
        "مثال على ذلك:\n",
        "דוגמה לקריאה:\n",
        "Παράδειγμα κλήσης:\n",
        "예시:\n",
        "예를 들어:\n",
        "例：\n",
        "範例如下：\n",
        "比如：\n",
        "呼び出しの例:\n",
        "たとえば:\n",
    ],
)
def test_introductions_of_an_example_are_recognized(before: str) -> None:
    """A sentence that introduces an example is recognized in many wordings and languages."""
    assert introduces_example(before)
    assert introduces_example(f"First.\n\n{before}")
    assert not introduces_example(f"{before}\nI call it now:")


@each(
    "before",
    [
        "",
        "Let me see:\n",
        "The function call would look like this:\n",
        "I read the example config:\n",
        "I fetch https://example.com/example:\n",
        "It is in example.txt. I read it:\n",
        "The weather for Rome, and for example cities:\n",
        "I look for an example.com address:\n",
        "To perform a test on the sample:\n",
        "I use the format that you want:\n",
        "I use the format of the last call:\n",
        "You sent a file, so I read it:\n",
        "The previous call was wrong, so I try again:\n",
        "I never saw the file, so I read it:\n",
        "I don't have the weather, so I fetch it:\n",
        "The documentation shows how, so I call it:\n",
        "I take a sample of the data:\n",
        "Beispielsweise nicht. Ich rufe auf:\n",
        "我来查询案例：\n",
        "我计算比例：\n",
        "Я вызываю функцию:\n",
        "Wywołuję funkcję:\n",
        "호출합니다:\n",
        "呼び出します:\n",
    ],
)
def test_announcements_of_a_call_are_not_introductions(before: str) -> None:
    """A sentence that a model writes before an actual call is not mistaken for the introduction of an example."""
    assert not introduces_example(before)


def test_time_is_linear() -> None:
    """Checking a long text takes linear time, because only its end is inspected."""
    assert growth(lambda size: introduces_example("an example " * size), 30_000) < LINEAR
