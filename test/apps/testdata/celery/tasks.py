# The first steps of Celery's documentation, and its periodic tasks.
from celery import Celery

app = Celery("tasks")
app.conf.broker_connection_retry_on_startup = True


@app.on_after_configure.connect
def setup_periodic_tasks(sender, **kwargs):
    sender.add_periodic_task(1.0, say.s("aspen"), name="say a word each second")


@app.task
def say(word):
    return word


@app.task
def add(x, y):
    return x + y
