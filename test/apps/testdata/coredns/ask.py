"""Asks a name server for the TXT of word.example.org, by UDP: ask.py ADDRESS."""
import socket
import struct
import sys

question = b"".join(bytes([len(label)]) + label for label in (b"word", b"example", b"org")) + b"\0"
query = struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + question + struct.pack("!2H", 16, 1)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.settimeout(2)
    s.sendto(query, (sys.argv[1], 53))
    answer, sender = s.recvfrom(512)
at = len(query) + 12  # behind the question and the header of the first record
print(answer[at + 1 : at + 1 + answer[at]].decode())
