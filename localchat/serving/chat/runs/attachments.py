"""The images and sounds of a chat request: which of them the model gets, and a note in place of each of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...core import errors
from ...core.mailbox import Mailbox
from ...core.media import (
    IMAGE,
    MARKER,
    MAX_MEDIA,
    Attachment,
    MediaFile,
    note_of,
    read_attachment,
    refuse_media,
    supported,
)
from ...core.request import ChatRequest
from ..model import Model


def read_media(model: Model, request: ChatRequest, mailbox: Mailbox) -> tuple[ChatRequest, Mapping[int, MediaFile]]:
    """The files of the attachments, by the numbers in their markers, and the request with markers for these alone.

    In replayed messages, notes replace the markers of images and sounds that the model cannot take.

    Raises:
        BadRequest: The model cannot take an image or a sound of a new message, or its file cannot be read.
        NotSupported: The library that reads it is not installed.
    """
    attachments = _Attachments(request.attachments, model.engine.facts.modalities)
    attachments.read()
    if files := attachments.files:
        # The engine process decodes them.
        problems = model.engine.media_errors(files.values(), mailbox)
        for i, problem in zip(list(files), problems):
            if problem is not None:
                attachments.leave_out(i, problem)
    return _with_notes(request, attachments.notes), attachments.files


class _Attachments:
    """The attachments of a request: each gets a file, or a note in its place, by its index."""

    def __init__(self, attachments: tuple[Attachment, ...], modalities: tuple[str, ...]) -> None:
        self.files: dict[int, MediaFile] = {}
        self.notes: dict[int, str] = {}
        self._attachments = attachments
        self._modalities = modalities

    def read(self) -> None:
        too_old = self._too_old()
        for i, attachment in enumerate(self._attachments):
            if i in too_old:
                reason = f"the limit is {MAX_MEDIA} images and sounds, and newer ones follow"
                self.notes[i] = note_of(attachment.kind, reason)
            elif self._is_supported(attachment):
                self._read_file(i)
            elif attachment.is_replayed:
                self.notes[i] = note_of(attachment.kind, supported(self._modalities))
            else:
                refuse_media(attachment.path, attachment.kind, self._modalities)

    def leave_out(self, i: int, error: errors.ApiError) -> None:
        """Put a note in the place of an attachment. Raises the error if that is in a new message."""
        attachment = self._attachments[i]
        if not attachment.is_replayed:
            raise error
        self.notes[i] = note_of(attachment.kind, error.message)
        self.files.pop(i, None)

    def _read_file(self, i: int) -> None:
        attachment = self._attachments[i]
        try:
            self.files[i] = read_attachment(attachment)
        except errors.BadRequest as error:
            self.leave_out(i, error)
        if len(self.files) > MAX_MEDIA:
            text = f"the request has more than {MAX_MEDIA} images and sounds: '{attachment.path}' is number {i + 1}"
            raise errors.BadRequest(text, attachment.path)

    def _too_old(self) -> set[int]:
        """The oldest replayed ones, if the model would get too many. Agents send a screenshot with each step."""
        indices = [i for i, attachment in enumerate(self._attachments) if self._is_supported(attachment)]
        replayed = [i for i in indices if self._attachments[i].is_replayed]
        return set(replayed[: max(len(indices) - MAX_MEDIA, 0)])

    def _is_supported(self, attachment: Attachment) -> bool:
        return ("image" if attachment.kind == IMAGE else "audio") in self._modalities


def _with_notes(request: ChatRequest, notes: Mapping[int, str]) -> ChatRequest:
    """The request, whose messages have notes in place of the markers with these numbers."""
    if not notes:
        return request

    def with_notes(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return MARKER.sub(lambda marker: notes.get(int(marker[1]), marker[0]), value)

    messages = ({name: with_notes(value) for name, value in message.items()} for message in request.messages)
    return replace(request, messages=tuple(messages))
