"""Loopback ports of a virtual machine that lead to sockets of the host, over one port of the machine.

Both sides exchange frames (kind, channel, length, body). The machine opens a channel for each incoming connection,
and names the host's socket by the port number. Neither side sends more on a channel than it was granted, so that a
slow reader blocks only its own channel. Runs inside, sent as text. Standard library only.
"""

from __future__ import annotations

import os
import select
import socket
import struct

FRAME = struct.Struct(">cIH")
# A new channel (body: port); data; how many more bytes may be sent; no more data; the channel is gone.
OPEN, DATA, GRANT, END, RESET = b"O", b"D", b"G", b"E", b"R"
PORT, COUNT = struct.Struct(">H"), struct.Struct(">I")
PIECE = 32_768
# Bytes that may be in transit on a channel in one direction.
WINDOW = 262_144
_MOST_CHANNELS = 256


class Channel:
    """One connection inside: the data still to be written to it, and how many bytes may be sent from it."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.pending = bytearray()
        self.credit = WINDOW
        self.read_ended = False
        self.write_ended = False


class Relay:
    """The loop inside: connections in, frames out, and back."""

    def __init__(self, port: int, listeners: dict[int, socket.socket]) -> None:
        self.port = port
        self.listeners = {sock.fileno(): (number, sock) for number, sock in listeners.items()}
        self.channels: dict[int, Channel] = {}
        self.by_fd: dict[int, Channel] = {}
        self.inbox = bytearray()
        self.next = 1
        self.poll = select.poll()
        self.poll.register(port, select.POLLIN)
        for fd in self.listeners:
            self.poll.register(fd, select.POLLIN)

    def send(self, kind: bytes, channel: int, body: bytes = b"") -> None:
        """Send one frame, waiting if the host reads slowly."""
        frame = memoryview(FRAME.pack(kind, channel, len(body)) + body)
        while frame:
            frame = frame[os.write(self.port, frame) :]

    def close(self) -> None:
        """Close all descriptors, in a process that does not serve."""
        os.close(self.port)
        for _, sock in self.listeners.values():
            sock.close()

    def run(self) -> None:
        """Serve until the host closes its end."""
        while True:
            for fd, event in self.poll.poll():
                if fd == self.port:
                    if not self._receive():
                        return
                elif fd in self.listeners:
                    number, listener = self.listeners[fd]
                    try:
                        sock, _ = listener.accept()
                    except OSError:
                        continue  # the client disconnected again
                    sock.setblocking(False)
                    if len(self.channels) >= _MOST_CHANNELS:
                        sock.close()
                        continue
                    channel = Channel(self.next, sock)
                    self.next += 1
                    self.channels[channel.number] = self.by_fd[sock.fileno()] = channel
                    self.send(OPEN, channel.number, PORT.pack(number))
                    self._listen(channel)
                elif fd in self.by_fd:
                    self._serve(self.by_fd[fd], event)

    def _listen(self, channel: Channel) -> None:
        """Wait for events with which the channel can continue."""
        events = select.POLLIN if channel.credit > 0 and not channel.read_ended else 0
        events |= select.POLLOUT if channel.pending else 0
        self.poll.register(channel.sock.fileno(), events)

    def _serve(self, channel: Channel, event: int) -> None:
        try:
            if event & select.POLLIN and channel.credit > 0 and not channel.read_ended:
                data = channel.sock.recv(min(PIECE, channel.credit))
                channel.credit -= len(data)
                channel.read_ended = not data
                self.send(DATA if data else END, channel.number, data)
                if channel.read_ended and channel.write_ended and not channel.pending:
                    self._drop(channel)
            if event & select.POLLOUT:
                if channel.pending:
                    sent = channel.sock.send(channel.pending[:PIECE])
                    del channel.pending[:sent]
                    self.send(GRANT, channel.number, COUNT.pack(sent))
                if channel.write_ended and not channel.pending:
                    # The far side decides when to end: a client that never closes must not hold the pair open.
                    self._drop(channel)
        except BlockingIOError:
            return
        except OSError:
            event = select.POLLERR
        if event & (select.POLLERR | select.POLLNVAL) or (event & select.POLLHUP and not event & select.POLLIN):
            self.send(RESET, channel.number)
            self._drop(channel)
        elif channel.number in self.channels:
            self._listen(channel)

    def _drop(self, channel: Channel) -> None:
        if self.channels.pop(channel.number, None) is None:
            return
        del self.by_fd[channel.sock.fileno()]
        self.poll.unregister(channel.sock.fileno())
        channel.sock.close()

    def _receive(self) -> bool:
        data = os.read(self.port, 2 * PIECE)
        if not data:
            return False
        self.inbox += data
        while len(self.inbox) >= FRAME.size:
            kind, number, size = FRAME.unpack_from(self.inbox)
            if len(self.inbox) < FRAME.size + size:
                break
            body = bytes(self.inbox[FRAME.size : FRAME.size + size])
            del self.inbox[: FRAME.size + size]
            channel = self.channels.get(number)
            if channel is None:
                continue
            if kind == DATA:
                channel.pending += body
            elif kind == GRANT:
                channel.credit += COUNT.unpack(body)[0]
            elif kind == END:
                channel.write_ended = True
            if kind == RESET or (channel.write_ended and not channel.pending):
                self._drop(channel)
            else:
                self._listen(channel)
        return True


def listen_on(number: int) -> socket.socket:
    """Return a socket that listens on a loopback port; raises `OSError`."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", number))
    sock.listen(128)
    return sock


def prepare(port: int, numbers: tuple[int, ...]) -> Relay:
    """Return a relay for connections to the ports `numbers` over the descriptor `port`; they are open already."""
    return Relay(port, {number: listen_on(number) for number in numbers})
