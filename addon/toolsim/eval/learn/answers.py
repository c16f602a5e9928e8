"""Asks a model questions through toolsim, with one mitmdump process for each setting.

Errors are handled as follows:

1. After a rate limit, the question is repeated once ``Retry-After`` has passed, if time allows (``question_run.py``). A
   persistent rate limit ends the run, as does a rejected key.
2. If the backend rejects a feature that the setting uses (tools or an enforced call form), ``Unavailable`` is raised.
3. After a timeout or any other error, the question has no answer. The run ends after a few such questions in a row.

An error never counts as an incorrect answer, since a failing server must not influence any decision.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from toolsim.core.plan import Feature
from toolsim.eval.learn.decisions import Setting
from toolsim.eval.learn.memory import VerdictFile
from toolsim.eval.learn.question_bank import Question
from toolsim.eval.learn.session import Ended, Unavailable
from toolsim.eval.proxy_process import Proxy
from toolsim.eval.question_run import Asking
from toolsim.eval.runtime.turn import Api, ProviderError, Send
from toolsim.proxy.options.option import PREFIX
from toolsim.request.engine import is_refusal

if TYPE_CHECKING:
    import openai

SECONDS = 120.0
"""Timeout for a question, in seconds. It is long because the model might have to be loaded first."""
MAX_TOKENS = 256
"""Maximum number of tokens in an answer: enough for two calls, or for the answer to any text question."""
OPEN_SECONDS = 10.0
TIME_OVER = "the time limit was reached"


class Answers:
    """Asks questions of the model at ``url``. The run ends when the monotonic clock reaches ``deadline``."""

    def __init__(
        self,
        url: str,
        key: str,
        model: str,
        memory: VerdictFile,
        deadline: float,
        *,
        api: Api = "chat",
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._url = url
        self._key = key
        self._model = model
        self._memory = memory
        self._deadline = deadline
        self._api = api
        self._clock = clock
        self._folder = Path(tempfile.mkdtemp(prefix="toolsim-tune-"))
        self._open: dict[Setting, tuple[Proxy, openai.AsyncOpenAI]] = {}
        self._started = 0

    async def __call__(self, setting: Setting, question: Question) -> bool | None:
        """Ask a question. Return whether the answer was correct (None after an error). Raises Unavailable or Ended."""
        if (known := self._memory.answer(setting, question.id)) is not None:
            return known
        started = self._clock()
        if (left := self._deadline - started) <= 0:
            raise Ended(TIME_OVER)
        limit = "max_tokens" if self._api == "chat" else "max_output_tokens"
        asking = Asking(await self._sender(setting), {"temperature": 0, limit: MAX_TOKENS}, SECONDS)
        try:
            async with asyncio.timeout(left):
                answer = await asking(question.request())
        except TimeoutError:
            raise Ended(TIME_OVER) from None
        except ProviderError as error:
            _judge(error, setting)
            return None
        right = question.is_right(answer)
        self._memory.add(
            setting,
            question.id,
            right,
            input_tokens=asking.input_tokens,
            output_tokens=asking.output_tokens,
            seconds=round(self._clock() - started - asking.waited, 3),
        )
        return right

    async def _sender(self, setting: Setting) -> Send:
        import openai

        from toolsim.eval.runtime.openai_client import sender

        if setting not in self._open:
            # Each option is set explicitly, so that no profile takes effect.
            values = [f"{PREFIX}{name}={value}" for name, value in setting.values().items()]
            self._started += 1
            proxy = await Proxy.start(self._url, values, self._folder / f"proxy-{self._started}")
            timeout = openai.Timeout(SECONDS, connect=OPEN_SECONDS)
            key = self._key or "none"
            client = openai.AsyncOpenAI(base_url=proxy.base_url, api_key=key, max_retries=0, timeout=timeout)
            self._open[setting] = proxy, client
        return sender(self._open[setting][1], self._model, api=self._api)

    async def close(self, setting: Setting) -> None:
        """Stop the proxy for a setting, and store the number of requests that it sent to the backend."""
        if setting in self._open:
            proxy, client = self._open.pop(setting)
            await client.close()
            await proxy.stop()
            self._memory.add_requests(len(list(proxy.captures.glob("*.flow"))))

    async def close_all(self) -> None:
        """Stop all proxies, and remove temporary files."""
        for setting in list(self._open):
            await self.close(setting)
        shutil.rmtree(self._folder, ignore_errors=True)


def _judge(error: ProviderError, setting: Setting) -> None:
    """Raise Ended if no further question can be answered, or Unavailable if the backend rejects the setting."""
    if error.status in (401, 403):
        raise Ended(f"the backend rejects the key (HTTP {error.status}: {error})")
    if error.status in (429, 503):
        raise Ended(f"the backend is still overloaded or rate-limited (HTTP {error.status}: {error})")
    asked: list[Feature] = ["tools"] if setting.mode == "native" else []
    asked += ["constraint"] if "constrain" in setting.changed() else []
    if error.status is not None and any(is_refusal(feature, error.status, str(error)) for feature in asked):
        raise Unavailable(f"the backend rejects the request (HTTP {error.status}: {error})")
