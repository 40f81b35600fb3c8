"""A tiny web service that writes out a few numbers, for the programs that ask one."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

WORDS = {"1": "one", "2": "two", "3": "three", "4": "four"}


class SpellingService:
    """Serves on a free port of loopback; `asked` has the texts and languages, `answer` replaces the true answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.answer: bytes | None = None
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                [text], [language] = query["text"], query["lang"]
                service.asked.append((text, language))
                spelled = re.sub(r"\d+", lambda match: WORDS[match[0]], text)
                body = service.answer or json.dumps({"text": spelled}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/spell"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> SpellingService:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
