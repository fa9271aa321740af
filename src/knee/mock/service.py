"""The routes of a simulated vLLM server."""

import asyncio
import random
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from knee.core.clock import Clock
from knee.core.units import NS_PER_S
from knee.engine.request import Request as EngineRequest
from knee.http1.exchange import JSON, Request, Response
from knee.mock.ask import Ask, Prompt, parse_ask
from knee.mock.config import MockConfig
from knee.mock.drive import Drive
from knee.mock.exposition import CONTENT_TYPE, Exposition
from knee.mock.frontend import FrontEndQueue, has_cost
from knee.mock.httpstats import HttpStats
from knee.mock.pages import detokenized, models_page, tokenized
from knee.mock.refusal import DRAINING, ENGINE_DEAD, Refused, busy, internal
from knee.mock.reply import VARY, Choice, Reply, Style
from knee.mock.serverlog import ServerLog
from knee.mock.text import Voice, plan_answer
from knee.mock.tokens import shared_segments

if TYPE_CHECKING:
    from collections.abc import Coroutine

Route = Callable[[Request, Response], "Coroutine[Any, Any, None]"]


class Service:
    """Answers requests from `drive`'s engine.

    `draining` refuses new work, as vLLM does after SIGTERM. `quiet` is set while no request is in flight,
    `died` when the engine has died.
    """

    def __init__(self, config: MockConfig, drive: Drive, clock: Clock, log: ServerLog) -> None:
        self.config = config
        self.drive = drive
        self.draining = False
        self.metrics_latency_s = 0.0
        self.died = asyncio.Event()
        self.quiet = asyncio.Event()
        self.quiet.set()
        self._clock = clock
        self._log = log
        front = drive.engine.config.front_end
        self._front = FrontEndQueue(front, clock) if has_cost(front) else None
        self._random = random.Random(config.seed)
        fingerprint = f"vllm-{config.version}-{self._hex(8)}"
        self.style = Style(
            model=config.model,
            voice=Voice(config.seed),
            fingerprint=fingerprint,
            stream_interval=config.stream_interval,
            per_request_metrics=config.enable_per_request_metrics,
        )
        self._stats = HttpStats()
        self._created_s = clock.wall_ns() / NS_PER_S
        self._pages: dict[str, Exposition] = {}
        self._metrics_version = config.version
        self._load = 0
        self._replies: set[Reply] = set()
        self._routes = self._table()

    async def __call__(self, request: Request, response: Response) -> None:
        """Answer one request."""
        methods = self._routes.get(request.path)
        try:
            if methods is None:
                self._json(response, 404, {"detail": "Not Found"}, request)
            elif request.method not in methods:
                self._json(response, 405, {"detail": "Method Not Allowed"}, request)
            else:
                await methods[request.method](request, response)
        except Refused as refused:
            response.send(refused.status, self._headers(request, JSON), refused.body())
        finally:
            self._account(request, response, "none" if methods is None else request.path)

    def show_version(self, version: str) -> None:
        """Let `/metrics` be that of another version."""
        self._metrics_version = version

    def cut_streams(self, tokens: int | None) -> None:
        """Break every new stream after `tokens` tokens; None is not at all."""
        self.style = msgspec.structs.replace(self.style, cut_after=tokens)

    def kill_engine(self) -> None:
        """The engine dies: whoever waits for it gets an error, and `/health` says so."""
        if self.drive.dead:
            return
        self._log.say("EngineCore", "core.py:1510", "EngineCore encountered a fatal error.", "ERROR")
        self._log.say("APIServer", "async_llm.py:724", "AsyncLLM output_handler failed.", "ERROR")
        text = f"vllm.v1.engine.exceptions.EngineDeadError: {ENGINE_DEAD}"
        self._log.say("APIServer", "async_llm.py:724", text, "ERROR")
        self.drive.kill()
        self.fail_all(internal(ENGINE_DEAD))
        self.died.set()

    def fail_all(self, refused: Refused) -> None:
        """Answer every request in flight with an error."""
        for reply in list(self._replies):
            reply.fail(refused)

    def close(self) -> None:
        """Stop what runs beside the requests."""
        if self._front is not None:
            self._front.close()

    # --- routes

    def _table(self) -> dict[str, dict[str, Route]]:
        table: dict[str, dict[str, Route]] = {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/load": {"GET": self._server_load},
            "/metrics": {"GET": self._metrics},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/completions": {"POST": self._completions},
            "/v1/chat/completions": {"POST": self._chat},
        }
        if self.config.dev_mode:
            table["/server_info"] = {"GET": self._server_info}
            table["/reset_prefix_cache"] = {"POST": self._reset_prefix_cache}
        return table

    async def _health(self, request: Request, response: Response) -> None:
        response.send(503 if self.drive.dead else 200, self._headers(request))

    async def _version(self, request: Request, response: Response) -> None:
        self._json(response, 200, {"version": self.config.version}, request)

    async def _server_load(self, request: Request, response: Response) -> None:
        self._json(response, 200, {"server_load": self._load}, request)

    async def _metrics(self, request: Request, response: Response) -> None:
        if self.metrics_latency_s:
            await asyncio.sleep(self.metrics_latency_s)
        version = self._metrics_version
        if version not in self._pages:
            self._pages[version] = Exposition(self.config.engine, self.config.model, version, self._created_s)
        page = self._pages[version].render(self.drive.snapshot())
        body = self._stats.of_process() + page + self._stats.of_http()
        response.send(200, self._headers(request, (b"content-type", CONTENT_TYPE)), body)

    async def _models(self, request: Request, response: Response) -> None:
        self._json(response, 200, models_page(self.config, self._now_s(), self._hex(16)), request)

    async def _tokenize(self, request: Request, response: Response) -> None:
        self._json(response, 200, tokenized(request.body, self.config), request)

    async def _detokenize(self, request: Request, response: Response) -> None:
        self._json(response, 200, detokenized(request.body, self.config), request)

    async def _server_info(self, request: Request, response: Response) -> None:
        info = {"vllm_config": msgspec.to_builtins(self.config.engine), "vllm_env": {}, "system_env": {}}
        self._json(response, 200, info, request)

    async def _reset_prefix_cache(self, request: Request, response: Response) -> None:
        self._json(response, 200, {"success": self.drive.forget_prefixes()}, request)

    async def _completions(self, request: Request, response: Response) -> None:
        await self._generate(request, response, parse_ask(request.body, False, self.config))

    async def _chat(self, request: Request, response: Response) -> None:
        await self._generate(request, response, parse_ask(request.body, True, self.config))

    # --- generating

    async def _generate(self, request: Request, response: Response, ask: Ask) -> None:
        self._check_alive()
        arrival_ns = self.drive.now_ns()
        given = ask.request_id or request.header(b"x-request-id") or self._hex(16)
        ident = ("chatcmpl-" if ask.chat else "cmpl-") + given
        reply = Reply(ask, response, self.style, ident=ident, created=self._now_s())
        self._replies.add(reply)
        self.quiet.clear()
        self._load += self.config.enable_server_load_tracking
        try:
            if self._front is not None:
                reply.front = self._front
                reply.front_server = await self._front.enter()
                self._check_alive()
            self._submit(ask, reply, arrival_ns)
            reply.begin(self._headers(request)[1:])
            await reply.done
        finally:
            self._replies.discard(reply)
            if not self._replies:
                self.quiet.set()
            self._load -= self.config.enable_server_load_tracking
            for choice in reply.choices:
                if not choice.complete:
                    self.drive.abort(choice.request)

    def _check_alive(self) -> None:
        if self.drive.dead:
            raise internal(ENGINE_DEAD)
        if self.draining:
            raise internal(DRAINING)

    def _submit(self, ask: Ask, reply: Reply, arrival_ns: int) -> None:
        """Hand every answer to the engine; who is refused leaves nothing behind (the caller aborts)."""
        eos_after = 0 if ask.ignore_eos else self.config.eos_after
        for at, (prompt, limit) in enumerate(zip(ask.prompts, ask.max_tokens, strict=True)):
            if ask.n > 1 and not self.drive.has_room_for(ask.n):
                raise busy("max_num_queued_reqs")
            segments = self._segments(prompt, ask)
            for number in range(ask.n):
                start = self.style.voice.start(prompt.text, ask.seed, number)
                answer = plan_answer(self.style.voice, start, limit, eos_after, ask.stop)
                work = EngineRequest(
                    0,
                    len(prompt),
                    answer.tokens,
                    arrival_ns=arrival_ns,
                    shared=segments,
                    priority=ask.priority,
                )
                choice = Choice(reply, at * ask.n + number, answer, work)
                reason = self.drive.submit(work, choice)
                if reason:
                    raise busy(reason)
                reply.add(choice)

    def _segments(self, prompt: Prompt, ask: Ask) -> tuple[tuple[int, int], ...]:
        engine = self.config.engine
        if not engine.enable_prefix_caching:
            return ()
        return shared_segments(prompt.tokens, engine.block_size, ask.cache_salt)

    # --- bits and pieces

    def _account(self, request: Request, response: Response, handler: str) -> None:
        seconds = (self._clock.monotonic_ns() - request.received_ns) / NS_PER_S
        whole = 0 if response.streamed else response.sent_bytes
        self._stats.count(
            handler,
            request.method,
            response.status or 500,
            request_bytes=len(request.body),
            response_bytes=whole,
            seconds=seconds,
        )
        if self.config.access_log:
            phrase = HTTPStatus(response.status).phrase if response.status else "-"
            self._log.access(request.peer, request.method, request.target, f"{response.status} {phrase}")

    def _headers(
        self, request: Request, kind: tuple[bytes, bytes] | None = None
    ) -> tuple[tuple[bytes, bytes], ...]:
        headers = (VARY,) if kind is None else (kind, VARY)
        if self.config.enable_request_id_headers:
            ident = request.header(b"x-request-id") or self._hex(32)
            return (*headers, (b"x-request-id", ident.encode("latin-1")))
        return headers

    def _json(self, response: Response, status: int, document: object, request: Request) -> None:
        response.send(status, self._headers(request, JSON), msgspec.json.encode(document))

    def _hex(self, digits: int) -> str:
        return f"{self._random.getrandbits(4 * digits):0{digits}x}"

    def _now_s(self) -> int:
        return self._clock.wall_ns() // NS_PER_S
