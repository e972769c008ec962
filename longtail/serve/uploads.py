"""Uploads: the text of .docx and .pdf files, for the page and for whoever has no reader of them."""

import asyncio
import json
import subprocess
import sys
from typing import Any

from fastapi import APIRouter, Request

from longtail.errors import DataError
from longtail.serve.api import PROBLEMS
from longtail.serve.batching import BusyError
from longtail.serve.extracting import SECONDS, find_kind
from longtail.serve.problems import Json
from longtail.serve.schemas import ExtractedText
from longtail.serve.state import MOST_FILES, state_of

COMMAND = (sys.executable, "-m", "longtail.serve.extracting")
FILE = {"schema": {"type": "string", "format": "binary"}, "example": "%PDF-1.7 …"}
BODY = {"content": {"application/octet-stream": FILE}, "required": True}

router = APIRouter(prefix="/v1", tags=["files"], responses=PROBLEMS)


@router.post("/text", response_model=ExtractedText, openapi_extra={"requestBody": BODY})
async def read_text(request: Request) -> Json:
    """Return the text of a .docx or .pdf file, which is the body; nothing of it is kept."""
    data = await request.body()
    find_kind(data)
    state = state_of(request)
    if state.n_files >= MOST_FILES:
        raise BusyError(
            f"{state.n_files} files are being read, and {MOST_FILES} may; try again in a second"
        )
    state.n_files += 1
    try:
        async with state.readers:
            answer = await asyncio.to_thread(_extract, data)
    finally:
        state.n_files -= 1
    if "problem" in answer:
        raise DataError(answer["problem"])
    return Json(answer)


def _extract(data: bytes) -> dict[str, Any]:
    try:
        done = subprocess.run(
            COMMAND, input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=SECONDS
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return {"problem": "the file takes too much time or memory to read; save it as text"}
