"""A check of traces against Chrome's Trace Event Format, for the tests of --timeline."""

from collections import defaultdict


def spans_of(trace):
    """Return {(process, thread): [(name, start, end, args)]} in order of time. A bad trace is an AssertionError."""
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = defaultdict(list)
    for event in events:
        assert event["ph"] in ("M", "X")
        assert isinstance(event["pid"], int)
        assert event["pid"] > 0  # Perfetto takes 0 for the idle process
        if event["ph"] == "X":
            assert isinstance(event["tid"], int)
            assert isinstance(event["ts"], int)
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            thread = names[event["pid"]], threads[event["pid"], event["tid"]]
            spans[thread].append((event["name"], event["ts"], event["ts"] + event["dur"], event["args"]))
    for thread, found in spans.items():
        found.sort(key=lambda span: span[1:3])
        overlaps = [(a, b) for a, b in zip(found, found[1:], strict=False) if a[2] > b[1]]
        assert not overlaps, thread
    return spans
