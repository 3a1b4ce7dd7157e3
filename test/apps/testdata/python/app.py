"""A WSGI application with its word in SQLite."""
import sqlite3
from wsgiref.simple_server import make_server

FILE = "/data/words.db"


def app(environ, start_response):
    with sqlite3.connect(FILE) as db:
        db.execute("CREATE TABLE IF NOT EXISTS words (word)")
        if environ["REQUEST_METHOD"] == "POST":
            word = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
            db.execute("INSERT INTO words VALUES (?)", (word,))
            said = "stored"
        else:
            said = "".join(word for word, in db.execute("SELECT word FROM words"))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [said.encode()]


make_server("0.0.0.0", 8000, app).serve_forever()
