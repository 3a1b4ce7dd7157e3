"""Asks a name server for the TXT of word.example.org, by UDP: ask.py ADDRESS."""
import socket
import struct
import sys

name = b"".join(bytes([len(label)]) + label for label in (b"word", b"example", b"org")) + b"\0"
query = struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + name + struct.pack("!2H", 16, 1)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.settimeout(2)
    s.sendto(query, (sys.argv[1], 53))
    answer, sender = s.recvfrom(512)
record = answer[len(query):]
record = record[2:] if record[0] >= 0xC0 else record[len(name):]  # a pointer, or the name again
print(record[11 : 11 + record[10]].decode())
