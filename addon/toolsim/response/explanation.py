"""Decides whether the sentence before an untagged or fenced call introduces an example that must not be run.

    Here is an example of the JSON:         text: the model explains
    In your last message you wrote:         text: the model quotes
    The function call would look like this: a call: models announce their calls like this

Only the last sentence before the call is considered. The pattern covers about thirty languages. It was tested with
10,456 recorded answers in which a sentence precedes text that looks like a call: the pattern does not match before any
valid call.
"""

from __future__ import annotations

import re

MAX_SENTENCE = 300
"""Number of characters before a call that are searched for the last sentence."""

_LAST_SENTENCE = re.compile(r"(?:[^\n.!?]|[.!?](?!\s))*+[.!?]?\s*\Z")
_EXAMPLE = re.compile(
    r"""
    # English
    ^\W* (?: for \s (?:example|instance) | examples? (?:\s [\w-]+){0,3} \s? : )
    | ^\W* (?: wrong | bad | incorrect | invalid | usage | syntax | sample | template ) \W* : \W* $
    | \b (?: an? | another | one | some ) \s (?:[\w-]+ \s){0,2} examples? \b (?! \s [\w-]+ \s? : ) (?! [-/\w] | \.\w )
    | \b (?: as \s an \s example | looks \s like )
    | \b (?: for \s (?:example|instance) | e\.g\.) \W* $
    | \b sample \s (?:[\w-]+ \s)? (?: calls? | requests? | invocations? | usage | json ) \b
    | \b (?: hypothetical | fictional | made-up | imaginary ) \s (?:[\w-]+ \s)? (?: call | request | invocation ) \b
    | \b (?: format | syntax | structure | shape | template ) \s (?: of | for ) \s (?: an? | any | each | every | such )
      \s [^,;\n]{1,60} \b is \b
    | \b (?: never | do \s not | don['’]t | must \s not | mustn['’]t | avoid ) \s [^,;\n]{1,40} \b
      (?: like \s (?:this|that|these|the) | such | the \s following ) \b
    | \b you \s (?:\w+ \s)? (?: wrote | sent | called | typed | posted | pasted | quoted )
      (?: \s (?:this|that|me) )? \W* $
    | \b (?: your | the | my ) \s (?: last | previous | earlier | first ) \s
      (?: call | message | request | attempt | answer ) \s (?: was | said | had | looked \s like ) \W* $
    | \b (?: docs | documentation | manual | readme | transcript ) \s (?: says? | shows? | has | gives? ) \W* $
    | \b (?: template | tokenizer | tokeniser | grammar | parser ) \s (?: writes | expects | emits | reads | wants )
      \s [^,;\n]{1,40} \s like \s this \W* $
    # the same in other alphabets and languages
    | \b (?: beispiel\w* | exemple | ejemplo | esempio | exemplo | voorbeeld | exempel | eksempel | esimerk\w*
            | exemplu\w* | przykład\w* | příklad\w* | například | príklad\w* | példa\w* | példáu\w* | primjer\w*
            | örnek | örneğin | contoh\w* | пример\w* | например | приклад\w* | наприклад
            | παράδειγμα | παραδείγματος ) \b
    | \b ví \s dụ \b | ตัวอย่าง | उदाहरण | مثال | مثلا | דוגמ[הא] | 예시 | 예제 | 예를 \s 들
    | (?<! [比案条條病惯慣凡先] ) 例 (?! [外会會行假] ) | 比如 | 譬如 | たとえば | サンプル | 样例 | 模板如下 | 格式如下
    """,
    re.IGNORECASE | re.VERBOSE,
)


def introduces_example(before: str) -> bool:
    """Return whether the last sentence before a call introduces an example. ``before``: the text before the call."""
    sentence = _LAST_SENTENCE.search(before[-MAX_SENTENCE:].rstrip())
    return sentence is not None and _EXAMPLE.search(sentence[0]) is not None
