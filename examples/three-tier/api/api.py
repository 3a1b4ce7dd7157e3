"""Takes orders. An order is a row of the database. Its number goes through the queue to any
instance, which ships it. A client may repeat a PUT: the row and the shipping happen once."""

import http.server
import json
import os
import re
import threading

import pika
import pymysql

EDITION = os.environ.get("EDITION", "first")
TABLE = """create table if not exists orders (id varchar(64) primary key,
    item varchar(200) not null, state enum('new', 'shipped') not null default 'new')"""
QUEUE = {"queue": "orders", "durable": True, "arguments": {"x-queue-type": "quorum"}}


def secret(name):
    with open("/run/secrets/" + name) as f:
        return f.read().strip()


class Database(threading.local):
    """A connection for each thread. After a failure, another member gets the statement again."""

    connection = None

    def run(self, statement, *values):
        for attempt in range(5):
            try:
                if self.connection is None:
                    self.connection = pymysql.connect(
                        host="db.pando", user="app", password=secret("db-password"), database="app",
                        autocommit=True, connect_timeout=3, read_timeout=10, write_timeout=10)
                with self.connection.cursor() as cursor:
                    cursor.execute(statement, values)
                    return cursor.fetchall()
            except (pymysql.OperationalError, pymysql.InternalError):
                if self.connection is not None:
                    self.connection._force_close()
                self.connection = None
                if attempt == 4:
                    raise


class Publisher:
    """Sends numbers of orders, each with the confirmation of a majority of the queue's members."""

    def __init__(self):
        self.lock, self.channel = threading.Lock(), None

    def send(self, order):
        with self.lock:
            for attempt in range(5):
                try:
                    if self.channel is None:
                        self.channel = channel()
                        self.channel.confirm_delivery()
                    self.channel.basic_publish(
                        "", QUEUE["queue"], order.encode(), pika.BasicProperties(delivery_mode=2))
                    return
                except (pika.exceptions.AMQPError, OSError):
                    self.channel = None
                    if attempt == 4:
                        raise


def channel():
    """Returns a channel of a new connection to any member of the queue."""
    c = pika.BlockingConnection(pika.ConnectionParameters(
        "queue.pando", credentials=pika.PlainCredentials("app", secret("queue-password")),
        socket_timeout=3, blocked_connection_timeout=10, heartbeat=5)).channel()
    c.queue_declare(**QUEUE)
    return c


def ship():
    """Ships the orders of the queue. One that it cannot ship goes back to the queue."""
    while True:
        try:
            c = channel()
            c.basic_qos(prefetch_count=10)
            for method, _, body in c.consume(QUEUE["queue"]):
                database.run("update orders set state='shipped' where id=%s", body.decode())
                c.basic_ack(method.delivery_tag)
        except (pika.exceptions.AMQPError, pymysql.Error, OSError):
            threading.Event().wait(1)


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, code, value):
        text = json.dumps(value).encode() + b"\n"
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def order(self):
        found = re.fullmatch(r"/orders/([\w-]{1,64})", self.path)
        return found and found.group(1)

    def do_PUT(self):
        order = self.order()
        size = int(self.headers.get("Content-Length", 0))
        if not order or not 0 < size <= 200:
            return self.answer(400, {"error": "PUT /orders/ID with an item of 1 to 200 bytes"})
        item = self.rfile.read(size).decode(errors="replace")
        database.run("insert into orders (id, item) values (%s, %s) on duplicate key update id=id",
                     order, item)
        publisher.send(order)
        self.answer(200, {"id": order})

    def do_GET(self):
        if self.path == "/":
            return self.answer(200, {"edition": EDITION})
        if self.path == "/orders":
            rows = database.run("select state, count(*) from orders group by state")
            return self.answer(200, dict(rows))
        order = self.order()
        rows = order and database.run("select item, state from orders where id=%s", order)
        if not rows:
            return self.answer(404, {"error": "no such order"})
        self.answer(200, {"id": order, "item": rows[0][0], "state": rows[0][1]})

    def log_message(self, *_):
        pass


database, publisher = Database(), Publisher()
if __name__ == "__main__":
    database.run(TABLE)
    threading.Thread(target=ship, daemon=True).start()
    http.server.ThreadingHTTPServer.request_queue_size = 128
    http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
