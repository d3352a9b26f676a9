"""The page on which a person answers an audit: one answer at a time, blind to its arm and score.

A small server on this machine shows it and writes each answer down before it shows the next. Its
address holds a secret, and whatever a policy wrote stands in the page as text.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from analysis.display.markup import environment, inline_hash
from study.cell import audit as kept
from study.cell.audit import Audit, Question
from study.rows import Row

WEB = Path(__file__).parent / "web"
LARGEST_FORM = 1000
"""Bytes of what the page sends."""
UNKNOWN = ""
"""What it sends for an answer that the person cannot tell."""


class Desk:
    """What one person is asked and has answered, in the order of the draw.

    Attributes:
        token: the secret in the address.
    """

    def __init__(
        self,
        study_dir: Path,
        audit: Audit,
        questions: Sequence[tuple[Question, Row]],
        levels: int,
    ) -> None:
        self.study_dir, self.audit = study_dir, audit
        self._groups = [(question.name, question.group) for question, _ in questions]
        self.questions = list(
            {question.name: (question, row) for question, row in questions}.values()
        )
        self.token = secrets.token_urlsafe(16)
        scores = [f"{place / (levels - 1):.6g}" for place in range(levels)]
        ends = {0: "worst", levels - 1: "best"} if levels > 2 else {0: "wrong", 1: "right"}
        self.keys = [
            *((str(n + 1), score, ends.get(n, score)) for n, score in enumerate(scores)),
            ("0", UNKNOWN, "cannot tell"),
        ]
        """Key, score and label of each button."""
        self.answers = kept.load_answers(study_dir)

    @property
    def next(self) -> int:
        """Place of the first question that is not answered; how many there are if all are."""
        names = (question.name for question, _ in self.questions)
        open_places = (at for at, name in enumerate(names) if name not in self.answers)
        return next(open_places, len(self.questions))

    def app(self) -> Starlette:
        """The application of the page."""
        return Starlette(routes=[Route(f"/{self.token}/", self._serve, methods=["GET", "POST"])])

    async def _serve(self, request: Request) -> Response:
        if request.method == "POST":
            return await self._answered(request)
        at = request.query_params.get("at", "")
        asked = int(at) if at.isascii() and at.isdigit() and len(at) < 9 else self.next
        return self._page(min(asked, self.next))

    async def _answered(self, request: Request) -> Response:
        """Write an answer down, then show the next; nothing is changed by what is no answer."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > LARGEST_FORM:
                return Response("too long", 413)
        fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True)
        at, score = (fields.get(name, ["?"])[0] for name in ("at", "score"))
        if score not in (key[1] for key in self.keys) or not (at.isascii() and at.isdigit()):
            return Response("This is no answer of the page.", 400)
        place = int(at[:9])
        if place > self.next or place >= len(self.questions):
            return Response("This question was not asked yet.", 400)
        name = self.questions[place][0].name
        self.answers[name] = None if score == UNKNOWN else float(score)
        kept.save_answers(self.study_dir, self.answers)
        return RedirectResponse(f"/{self.token}/", 303)

    def _page(self, at: int) -> Response:
        """The page of one question, or the last word where all are answered."""
        question, row = self.questions[at] if at < len(self.questions) else (None, None)
        style, script = (
            (WEB / name).read_text(encoding="utf-8").strip() for name in ("page.css", "page.js")
        )
        name = question.name if question else ""
        said = self.answers.get(name)
        whole = kept.answered_groups(self.audit, self._groups, self.answers)
        text = (
            environment(WEB)
            .get_template("page.html")
            .render(
                study=self.study_dir.name,
                question=question,
                criteria=row.criteria if row else (),
                reference=row.reference if row else None,
                keys=self.keys,
                said=None
                if name not in self.answers
                else UNKNOWN
                if said is None
                else f"{said:.6g}",
                at=at,
                answered=sum(question.name in self.answers for question, _ in self.questions),
                total=len(self.questions),
                groups=len(whole),
                all_groups=len(self.audit.groups),
                style=style,
                script=script,
            )
        )
        policy = (
            f"default-src 'none'; script-src {inline_hash(script)}; "
            f"style-src {inline_hash(style)}; base-uri 'none'; form-action 'self'; "
            "frame-ancestors 'none'"
        )
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store"}
        return HTMLResponse(text, headers=headers)
