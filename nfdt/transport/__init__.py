"""How tensors travel between a worker and a parameter server.

Control messages are protobuf on one gRPC stream per worker and shard (proto/nfdt/rpc/parameter_server.proto).
Tensors go through a file that both map when the two share a host, else as raw chunks on that stream, right behind the
message that announces them. One round trip a step: the answer to a push is the next pull.

Copies of one tensor, from the worker's gradient to the server's optimizer and back into the worker's variable:

    shared memory   push 1: into the file
                    pull 1: into the file
    gRPC stream     push 6: into a chunk, gRPC's slice, the kernel and out again, Python's bytes, the buffer
                    pull 6: the same

What a file or a receive buffer holds is read in place: the server's tensors and the worker's variables lie over it. A
buffer is written again only when its worker has pushed what it computed from it.
"""
