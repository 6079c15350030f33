"""A web application without libraries: a request stores an order and enqueues its task in one transaction.

Usage: shop.py DATABASE_URL. Prints its port. Passes the trace of the request on to the task.
"""
import json
import secrets
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

ORDER = """BEGIN;
INSERT INTO orders (item) VALUES (:'item');
SELECT mill.enqueue($$SELECT pg_advisory_xact_lock(1);
    INSERT INTO shipped SELECT item FROM orders$$, options => :'options');
COMMIT;
"""


class Shop(BaseHTTPRequestHandler):
    def do_POST(self):
        version, trace, _caller, flags = self.headers["traceparent"].split("-")
        span = f"{version}-{trace}-{secrets.token_hex(8)}-{flags}"
        item = self.rfile.read(int(self.headers["content-length"])).decode()
        command = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-v", f"item={item}"]
        command += ["-v", "options=" + json.dumps({"traceparent": span}), sys.argv[1]]
        done = subprocess.run(command, input=ORDER, text=True, stdout=subprocess.DEVNULL)
        self.send_response(500 if done.returncode else 200)
        self.end_headers()
        self.wfile.write(span.encode())

    def log_message(self, *_args):
        pass


server = HTTPServer(("127.0.0.1", 0), Shop)
print(server.server_port, flush=True)
server.serve_forever()
