"""Handlers of a gRPC server: their threads, malformed messages, and streams that break.

A message that is not valid protobuf is refused here. gRPC's Python server answers it with a status, and then expects
the status of the handler's end too, which is never sent: the call would never finish, and `server.stop()` would wait
for it forever.

A stream that breaks raises StreamBroken instead of gRPC's error. gRPC keeps its error in the state of the call. The
error's traceback refers to the frames of the handler, and these refer to the call: a cycle, which holds everything that
the handler has received until a garbage collection of the oldest objects.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import grpc

_MALFORMED = object()
_MALFORMED_REASON = "a message is malformed: its bytes are not of the type that this call takes"
_GONE = "the caller has broken the stream"


KINDS = {  # by: the requests are a stream, the answers are one
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


class StreamBroken(Exception):
    """A stream of messages has ended before its sender closed it."""


class ThreadPerCall(Executor):
    """Runs each function in a thread of its own, which ends with the function.

    An idle thread of a ThreadPoolExecutor keeps what the allocator and TensorFlow cache for it, and ends only when a
    garbage collection finds the executor.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Start `fn` and return its future."""
        future: Future[Any] = Future()
        threading.Thread(target=_run, args=(future, fn, args, kwargs), name="grpc").start()
        return future


def _run(future: "Future[Any]", fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:
        future.set_exception(error)
        del future  # the error's traceback refers to this frame
    else:
        future.set_result(result)


class GuardStreams(grpc.ServerInterceptor):
    """Raises, in the handler, ValueError for a malformed message and StreamBroken for a stream that breaks.

    The caller receives INVALID_ARGUMENT for a malformed message, whatever the handler does about the error.
    """

    def intercept_service(self, continuation: Callable[..., Any], details: grpc.HandlerCallDetails) -> Any:
        handler = continuation(details)
        if handler is None:
            return handler
        kind, make = KINDS[bool(handler.request_streaming), bool(handler.response_streaming)]
        wrap = _streaming if handler.response_streaming else _single
        deserialize = handler.request_deserializer
        return make(
            wrap(getattr(handler, kind), many=handler.request_streaming),
            request_deserializer=deserialize and _tolerant(deserialize),
            response_serializer=handler.response_serializer,
        )


class _Requests:
    """The messages of one call. `bad`: one of them was malformed. `broken`: the stream has broken."""

    def __init__(self, messages: Iterator[Any]) -> None:
        self._messages = messages
        self.bad = self.broken = False

    def __iter__(self) -> "_Requests":
        return self

    def __next__(self) -> Any:
        try:
            message = next(self._messages)
        except grpc.RpcError as error:
            error.__traceback__ = None
            self.broken = True
        if self.broken:
            raise StreamBroken(_GONE)
        if message is _MALFORMED:
            self.bad = True
            raise ValueError(_MALFORMED_REASON)
        return message


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception:  # protobuf's implementations raise different exceptions
            return _MALFORMED

    return read


@contextlib.contextmanager
def _guarded(requests: _Requests, context: grpc.ServicerContext) -> Iterator[None]:
    """Abort the call at the end of the context if one of its messages was malformed, or its stream has broken."""
    try:
        yield
    except ValueError:
        if not requests.bad:
            raise
    except StreamBroken:
        pass
    if requests.bad:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, _MALFORMED_REASON)
    if requests.broken:  # nobody receives it; but gRPC would log another error, and a missing answer
        context.abort(grpc.StatusCode.CANCELLED, _GONE)


def _single(behave: Callable[..., Any], *, many: bool) -> Callable[..., Any]:
    """Wrap a handler with one answer."""

    def answer(given: Any, context: grpc.ServicerContext) -> Any:
        requests = _Requests(given if many else iter([given]))
        with _guarded(requests, context):
            return behave(requests if many else next(requests), context)

    return answer


def _streaming(behave: Callable[..., Any], *, many: bool) -> Callable[..., Any]:
    """Wrap a handler with a stream of answers."""

    def answers(given: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        requests = _Requests(given if many else iter([given]))
        with _guarded(requests, context):
            yield from behave(requests if many else next(requests), context)

    return answers
