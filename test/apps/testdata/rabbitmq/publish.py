"""Puts a word into a durable queue, or reads it there: publish.py ADDRESS put|get."""
import sys

import pika

address, what = sys.argv[1:]
connection = pika.BlockingConnection(pika.ConnectionParameters(
    address, credentials=pika.PlainCredentials("user", "password")))
channel = connection.channel()
channel.queue_declare("words", durable=True)
if what == "put":
    channel.confirm_delivery()
    channel.basic_publish("", "words", b"aspen", pika.BasicProperties(delivery_mode=2), mandatory=True)
    print("stored")
else:
    frame, _, body = channel.basic_get("words")
    print(body.decode() if body else "empty")
    if frame:
        channel.basic_nack(frame.delivery_tag, requeue=True)
connection.close()
