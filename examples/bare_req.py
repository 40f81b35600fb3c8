"""tidings from a bare REQ socket: only pyzmq and msgpack, no tidings. Usage: bare_req.py tcp://127.0.0.1:7400"""

import os, sys, msgpack, zmq  # noqa: E401, I001

socket = zmq.Context().socket(zmq.REQ)
socket.connect(sys.argv[1])


def ask(kind, *fields, body=None):
    socket.send_multipart([msgpack.packb([kind, 1, *fields])] + ([msgpack.packb(body)] if body else []))
    header, *bodies = [msgpack.unpackb(frame) for frame in socket.recv_multipart()]
    assert header[0] != "error", header[3]
    return header[0], header[2:], bodies


_, [epoch, *_], _ = ask("hello", 1, "bare", os.urandom(16))  # version, name, token -> epoch
ask("subscribe", "bare", epoch, ["news"], "now")
_, [last], _ = ask("sequence", "bare", epoch, "news")  # my last number in this topic
ask("put", "bare", epoch, [[["news", last + 1]], 1], body=[1, "bare", [b"hello from a bare socket"]])
while (answer := ask("get", "bare", epoch, "news"))[0] == "article":
    _, [topic, offset, attempt], [batch] = answer
    print(topic, offset, batch[2][0].decode())
    ask("ack", "bare", epoch, [[topic], [[topic, offset + 1]]])  # only now does the cursor move
