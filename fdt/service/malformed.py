"""Refusal of messages that are not valid protobuf, by this project instead of by gRPC.

gRPC's Python server answers such a message with a status, and then expects the status of the handler's end too, which
is never sent. The call never finishes, and `server.stop()` waits for it forever.
"""

from collections.abc import Callable, Iterator
from typing import Any

import grpc

_MALFORMED = object()
_SAID = "a message must be of the kind that this call takes. Received: bytes that are none"


class RefuseMalformed(grpc.ServerInterceptor):
    """Raises ValueError in the handler where a message is malformed; the caller receives INVALID_ARGUMENT."""

    def intercept_service(self, continuation: Callable[..., Any], details: grpc.HandlerCallDetails) -> Any:
        handler = continuation(details)
        if handler is None or handler.request_deserializer is None:
            return handler
        kind = "_".join("stream" if s else "unary" for s in (handler.request_streaming, handler.response_streaming))
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        wrap = _streaming if handler.response_streaming else _single
        return make(
            wrap(getattr(handler, kind), many=handler.request_streaming),
            request_deserializer=_tolerant(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


class _Requests:
    """The messages of one call. `bad`: one of them was malformed."""

    def __init__(self, messages: Iterator[Any]) -> None:
        self._messages = messages
        self.bad = False

    def __iter__(self) -> "_Requests":
        return self

    def __next__(self) -> Any:
        message = next(self._messages)
        if message is _MALFORMED:
            self.bad = True
            raise ValueError(_SAID)
        return message


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception:  # protobuf's implementations raise different exceptions
            return _MALFORMED

    return read


def _single(behave: Callable[..., Any], *, many: bool) -> Callable[..., Any]:
    """Wrap a handler with one answer."""

    def answer(given: Any, context: grpc.ServicerContext) -> Any:
        requests = _Requests(given if many else iter([given]))
        try:
            result = behave(requests if many else next(requests), context)
        except ValueError:
            if not requests.bad:
                raise
        if requests.bad:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, _SAID)
        return result

    return answer


def _streaming(behave: Callable[..., Any], *, many: bool) -> Callable[..., Any]:
    """Wrap a handler with a stream of answers."""

    def answers(given: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        requests = _Requests(given if many else iter([given]))
        try:
            yield from behave(requests if many else next(requests), context)
        except ValueError:
            if not requests.bad:
                raise
        if requests.bad:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, _SAID)

    return answers
