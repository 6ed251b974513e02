"""Transport of tensors between a worker and a parameter server.

Control messages are protobuf on one gRPC stream per worker and shard (proto/nfdt/rpc/parameter_server.proto). Tensors
go through a file that both processes map if they share a host, else as raw chunks on that stream, directly behind the
message that announces them. A step takes one round trip: the answer to a push is the next pull.

Copies of one tensor, from the worker's gradient to the server's optimizer and back into the worker's variable:

    shared memory   push 1: into the file
                    pull 1: into the file
    gRPC stream     push 6: into a chunk, gRPC's slice, the kernel and out again, Python's bytes, the buffer
                    pull 6: the same

Files and receive buffers are read in place: the server's tensors and the worker's variables share their memory. A
buffer is written again only after its worker has pushed the gradient computed from it.
"""
